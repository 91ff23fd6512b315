"""The languages that come with Warmcell.

A new one is a member of `core.language.Language`, a row here and, if commands are not enough, a file beside it.
"""

from __future__ import annotations

from warmcell.core.language import ALIASES, Language
from warmcell.languages.row import LanguageRow

ROWS = (
    LanguageRow(
        Language.PYTHON,
        aliases=ALIASES[Language.PYTHON],
        suffixes=(".py",),
        runtime="warmcell.languages.python:PythonRuntime",
        remedy="set ProcessConfig(python_path=...) to a Python 3.9 or newer",
    ),
    LanguageRow(
        Language.JAVASCRIPT,
        aliases=ALIASES[Language.JAVASCRIPT],
        suffixes=(".js", ".mjs", ".cjs"),
        runtime="warmcell.languages.javascript:JavaScriptRuntime",
        remedy='pip install "warmcell[js]", or install Node.js 18 or newer',
    ),
    LanguageRow(
        Language.TYPESCRIPT,
        aliases=ALIASES[Language.TYPESCRIPT],
        suffixes=(".ts", ".mts", ".cts"),
        runtime="warmcell.languages.javascript:TypeScriptRuntime",
        remedy='pip install "warmcell[js]", or install Node.js 22.18 or newer',
    ),
    LanguageRow(
        Language.RUST,
        aliases=ALIASES[Language.RUST],
        suffixes=(".rs",),
        runtime="warmcell.languages.rust:RustRuntime",
        remedy="install it with rustup (https://rustup.rs) or from your distribution (rustc and gcc)",
        is_compiled=True,
    ),
    LanguageRow(
        Language.COMMAND,
        aliases=ALIASES[Language.COMMAND],
        suffixes=(".sh",),
        runtime="warmcell.languages.shell:ShellRuntime",
        remedy="install bash",
    ),
    LanguageRow(
        Language.C,
        suffixes=(".c",),
        programs=("gcc", "clang", "cc"),
        main_file="main.c",
        build=("{program}", "-O2", "-std=c17", "-iquote", ".", "-o", "{out}/main", "{code}/main.c", "-lm", "-pthread"),
        start=("{out}/main",),
        remedy="install gcc (apt install gcc libc6-dev, dnf install gcc)",
        is_compiled=True,
    ),
    LanguageRow(
        Language.CPP,
        aliases=ALIASES[Language.CPP],
        suffixes=(".cpp", ".cc", ".cxx", ".c++"),
        programs=("g++", "clang++", "c++"),
        main_file="main.cpp",
        build=("{program}", "-O2", "-std=c++20", "-iquote", ".", "-o", "{out}/main", "{code}/main.cpp", "-pthread"),
        start=("{out}/main",),
        remedy="install g++ (apt install g++, dnf install gcc-c++)",
        is_compiled=True,
    ),
    LanguageRow(
        Language.GO,
        aliases=ALIASES[Language.GO],
        suffixes=(".go",),
        runtime="warmcell.languages.go:GoRuntime",
        remedy="install Go (https://go.dev/dl, apt install golang)",
        is_compiled=True,
    ),
    LanguageRow(
        Language.JAVA,
        suffixes=(".java",),
        runtime="warmcell.languages.java:JavaRuntime",
        remedy="install a JDK 11 or newer (apt install default-jdk-headless)",
        is_compiled=True,
    ),
    LanguageRow(
        Language.RUBY,
        aliases=ALIASES[Language.RUBY],
        suffixes=(".rb",),
        programs=("ruby",),
        main_file="main.rb",
        start=("{program}", "{code}/main.rb"),
        check=("{program}", "-c", "{code}/main.rb"),
        shows=("/var/lib/gems",),
        remedy="install ruby (apt install ruby)",
    ),
    LanguageRow(
        Language.PHP,
        suffixes=(".php",),
        programs=("php",),
        main_file="main.php",
        # Errors go to stderr; memory is bounded for the run as a whole.
        start=("{program}", "-d", "display_errors=stderr", "-d", "memory_limit=-1", "{code}/main.php"),
        check=("{program}", "-d", "display_errors=stderr", "-l", "{code}/main.php"),
        # The list of extensions; not php.ini, which may contain more than settings.
        shows=("/etc/php/*/cli/conf.d", "/etc/php/*/mods-available"),
        remedy="install PHP (apt install php-cli)",
    ),
    LanguageRow(
        Language.PERL,
        aliases=ALIASES[Language.PERL],
        suffixes=(".pl",),
        programs=("perl",),
        main_file="main.pl",
        start=("{program}", "{code}/main.pl"),
        check=("{program}", "-c", "{code}/main.pl"),
        version=("{program}", "-e", "print qq(perl $^V)"),
        remedy="install perl",
    ),
    LanguageRow(
        Language.LUA,
        suffixes=(".lua",),
        programs=("lua5.4", "lua5.3", "lua"),
        main_file="main.lua",
        start=("{program}", "{code}/main.lua"),
        check=(
            "{program}",
            "-e",
            "local _, why = loadfile('{code}/main.lua') if why then io.stderr:write(why, '\\n') os.exit(1) end",
        ),
        version=("{program}", "-e", "print(_VERSION)"),
        remedy="install Lua (apt install lua5.4)",
    ),
    LanguageRow(
        Language.R,
        aliases=ALIASES[Language.R],
        suffixes=(".r",),
        programs=("Rscript",),
        main_file="main.R",
        start=("{program}", "--vanilla", "{code}/main.R"),
        check=("{program}", "--vanilla", "-e", "invisible(parse('{code}/main.R'))"),
        shows=("/etc/R",),
        remedy="install R (apt install r-base-core)",
    ),
    LanguageRow(
        Language.SQL,
        aliases=ALIASES[Language.SQL],
        suffixes=(".sql",),
        runtime="warmcell.languages.sql:SqlRuntime",
        remedy="set ProcessConfig(python_path=...) to a Python that has the sqlite3 module",
    ),
    LanguageRow(
        Language.WASM,
        suffixes=(".wasm", ".wat"),
        remedy='use WasmBackend() (pip install "warmcell[wasm]")',
        backend="wasm",
    ),
)

REMEDIES = {row.name: row.remedy for row in ROWS}

"""The languages that come with Warmcell. A new one is a row here and, if commands are not enough, a file beside it."""

from __future__ import annotations

from warmcell.languages.row import LanguageRow

ROWS = (
    LanguageRow(
        "python",
        aliases=("py", "python3"),
        suffixes=(".py",),
        runtime="warmcell.languages.python:PythonRuntime",
        remedy="set ProcessConfig(python_path=...) to a Python 3.9 or newer",
    ),
    LanguageRow(
        "javascript",
        aliases=("js", "node", "nodejs"),
        suffixes=(".js", ".mjs", ".cjs"),
        runtime="warmcell.languages.javascript:JavaScriptRuntime",
        remedy='pip install "warmcell[js]", or install Node.js 18 or newer',
    ),
    LanguageRow(
        "typescript",
        aliases=("ts",),
        suffixes=(".ts", ".mts", ".cts"),
        runtime="warmcell.languages.javascript:TypeScriptRuntime",
        remedy='pip install "warmcell[js]", or install Node.js 22.18 or newer',
    ),
    LanguageRow(
        "rust",
        aliases=("rs",),
        suffixes=(".rs",),
        runtime="warmcell.languages.rust:RustRuntime",
        remedy="install it with rustup (https://rustup.rs) or from your distribution (rustc and gcc)",
        is_compiled=True,
    ),
    LanguageRow(
        "command",
        aliases=("bash", "sh", "shell"),
        suffixes=(".sh",),
        runtime="warmcell.languages.shell:ShellRuntime",
        remedy="install bash",
    ),
    LanguageRow(
        "wasm",
        suffixes=(".wasm", ".wat"),
        remedy='use WasmBackend() (pip install "warmcell[wasm]")',
        backend="wasm",
    ),
)

REMEDIES = {row.name: row.remedy for row in ROWS}

"""IPython magics that people and models commonly use: `%name`, `%%name` and `!command`.

A line is parsed as a magic only if it is a syntax error in Python, so `%` and `!` in expressions are unaffected.
"""

import _ast  # `ast` is slow to import
import os
import re
import subprocess
import sys
import time

_LINE = re.compile(r"^(\s*)(?:([A-Za-z_][\w.,\s]*?)\s*=\s*)?([!%])(.*)$", re.DOTALL)
_ASSIGNMENT = re.compile(r"[^\W\d]\w*\s*(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")
_CELL = re.compile(r"^\s*%%(\w+)[ \t]*([^\n]*)\n?(.*)$", re.DOTALL)
LINES = ("cd", "matplotlib", "pip", "pwd", "time")
CELLS = ("bash", "sh", "time", "writefile")


def code_of_line(source, filename, flags):
    """Compiles a cell of one simple line. Returns the code and whether it has a value; None for any other cell.

    Most cells are like that, and building a syntax tree takes twice as long.
    """
    if "\n" in source or ";" in source or source[:1].isspace():
        return None
    for kind in ("exec",) if _ASSIGNMENT.match(source) else ("eval", "exec"):
        try:
            return compile(source, filename, kind, flags, dont_inherit=True), kind == "eval"
        except SyntaxError:
            continue
    return None


def python_for(source, filename, flags):
    """The cell as a syntax tree, with magics replaced by calls. Raises SyntaxError."""
    if cell := _CELL.match(source):
        source = f"__magic__.cell{cell.groups()!r}"
    if source[:1].isspace():
        source = _dedent(source)
    lines = None
    while True:
        try:
            return compile(source, filename, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
        except SyntaxError as error:
            lines = lines or source.split("\n")
            if not _replace(lines, (error.lineno or 0) - 1):
                raise
            source = "\n".join(lines)


def _dedent(source):
    """Removes the indentation of the first line from all lines, as notebooks do. Line numbers stay the same."""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(indent) for line in lines)


def _replace(lines, number):
    """Replaces a magic by a call, in place; False if the line is not a magic. Line numbers stay the same."""
    match = _LINE.match(lines[number]) if 0 <= number < len(lines) else None
    if match is None:
        return False
    indent, target, kind, text = match.groups()
    last = number
    while text.endswith("\\") and last + 1 < len(lines):
        last += 1
        text = text[:-1] + lines[last]
        lines[last] = ""
    if kind == "!":
        call = f"__magic__.{'output' if target else 'shell'}({text!r})"
    else:
        call = f"__magic__.line({text!r})"
    lines[number] = f"{indent}{target} = {call}" if target else indent + call
    return True


class Magics:
    """The implementation of the magics, as `__magic__`."""

    def __init__(self, namespace, run, flush):
        self._namespace, self._run, self._flush = namespace, run, flush

    def shell(self, command):
        """`!command`: prints its output."""
        self._namespace["_exit_code"] = self._call(_shell_for(self._expand(command)))

    def output(self, command):
        """`lines = !command`."""
        self._flush()
        done = subprocess.run(
            _shell_for(self._expand(command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._namespace["_exit_code"] = done.returncode
        return done.stdout.decode("utf-8", "replace").splitlines()

    def line(self, text):
        name, _, rest = text.strip().partition(" ")
        if name not in LINES:
            raise NotImplementedError(f"the magic %{name} is not supported here; these are: {_list('%', LINES)}")
        return getattr(self, f"_line_{name}")(rest.strip())

    def cell(self, name, arguments, body):
        if name not in CELLS:
            raise NotImplementedError(f"the magic %%{name} is not supported here; these are: {_list('%%', CELLS)}")
        return getattr(self, f"_cell_{name}")(arguments.strip(), body)

    def _line_cd(self, path):
        os.chdir(os.path.expanduser(self._expand(path).strip("\"'") or "~"))
        print(os.getcwd())

    def _line_pwd(self, _):
        return os.getcwd()

    def _line_matplotlib(self, _):
        """Does nothing: figures are always displayed."""

    def _line_pip(self, arguments):
        if self._call([sys.executable, "-m", "pip", *_words(self._expand(arguments))]) == 0:
            import importlib

            importlib.invalidate_caches()

    def _line_time(self, statement):
        return self._time(lambda: self._run(statement))

    def _cell_time(self, arguments, body):
        return self._time(lambda: self._run(f"{arguments}\n{body}"))

    def _cell_bash(self, arguments, body):
        status = self._call([*_shell(), "-s", *_words(arguments)], body)
        if status:
            raise subprocess.CalledProcessError(status, "bash")

    _cell_sh = _cell_bash

    def _cell_writefile(self, arguments, body):
        is_appended = arguments.startswith("-a ")
        path = os.path.expanduser(arguments[3:].strip() if is_appended else arguments)
        with open(path, "a" if is_appended else "w", encoding="utf-8") as file:
            file.write(body)
        print(f"{'Appended to' if is_appended else 'Wrote'} {path}")

    def _time(self, work):
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return work()
        finally:
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            print(f"CPU time: {cpu * 1000:.3g} ms, wall time: {wall * 1000:.3g} ms")

    def _call(self, argv, text=None):
        """Runs a command in our process group, so that interrupts reach it, too."""
        self._flush()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
        try:
            process.communicate(None if text is None else text.encode())
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process.returncode

    def _expand(self, command):
        """Replaces `{expression}` and `$name` of the session; other names are left to the shell."""

        def value(match):
            try:
                return str(eval(match[1] or match[2], self._namespace))
            except Exception:  # left to the shell, such as {a,b}
                return match[0]

        return re.sub(r"(?<![$\\{])\{([^{}]+)\}|(?<!\\)\$([A-Za-z_]\w*)", value, command)


def _shell():
    return ["/bin/bash"] if os.path.exists("/bin/bash") else ["/bin/sh"]


def _shell_for(command):
    return [*_shell(), "-c", command]


def _words(text):
    import shlex

    return shlex.split(text)


def _list(prefix, names):
    return ", ".join(prefix + name for name in names)

"""The worker of a shell session: runs a bash, passes cells to it, and reads their exit statuses.

When that bash exits (by `exit`, a failure under `set -e` or an interrupt), a new one continues with its variables,
functions, options and directory.
"""

import os
import resource
import select
import shlex
import signal
import subprocess

from .session_channel import Channel

_CONTROL = 3
_BASH = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.path.exists(path)), None)
#: The descriptor on which bash reports: far from the numbers that scripts use.
_REPORT = 250
_MOST_REPORTED = 4 * 1024 * 1024
_LONGEST_VARIABLE, _MOST_CHARACTERS = 1000, 64 * 1024

_SET_UP = f"""\
__warmcell_status() {{ return "$1"; }}
__warmcell_leave() {{
    local __warmcell_code=$?
    trap '' INT
    trap - EXIT
    {{
        builtin printf 'left %d\\n' "$__warmcell_code"
        declare -p; declare -f; alias -p; shopt -p; set +o
        builtin printf 'cd -- %q\\n' "$PWD"
        builtin printf '\\0'
    }} >&{_REPORT} 2>/dev/null
}}
trap __warmcell_leave EXIT
"""
#: Sets `$?` to the status of the previous cell, without triggering `set -e`.
_RUN = "LINENO=0; {status}eval {code} </dev/null; builtin printf 'done %d\\n\\0' $? >&{report}\n"
_LIST = "for __name in $(compgen -v); do declare -p \"$__name\"; builtin printf '\\0'; done >&{report} 2>/dev/null; \
unset __name; builtin printf 'listed\\n\\0' >&{report}\n"


def main():
    if _BASH is None:
        os.write(2, b"bash was not found in this sandbox\n")
        os._exit(127)
    session = ShellSession(Channel(_CONTROL))
    while True:
        session.serve_one()


class ShellSession:
    def __init__(self, channel):
        self._channel = channel
        self._status = 0
        self._count = 0
        self._pending = b""
        channel.interrupts.install()
        self._start(b"")
        self._own_names = set(self._declarations())

    def serve_one(self):
        request = self._channel.receive()
        if request["op"] == "run":
            self._run_cell(request)
        elif request["op"] == "variables":
            self._send_variables(request)

    # ---- bash ----

    def _start(self, state):
        """`state`: commands that restore the state of the previous bash."""
        self._report, report = os.pipe()
        os.dup2(report, _REPORT, inheritable=True)
        os.close(report)
        self._pending = b""
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-s"], executable=_BASH, stdin=subprocess.PIPE, pass_fds=[_REPORT]
        )
        os.close(_REPORT)
        self._gone = os.pidfd_open(self._bash.pid)
        self._ready = select.poll()
        self._ready.register(self._report, select.POLLIN)
        self._ready.register(self._gone, select.POLLIN)
        if state:
            self._write(b"eval " + shlex.quote(state.decode("utf-8", "surrogateescape")).encode(
                "utf-8", "surrogateescape") + b" 2>/dev/null >/dev/null\n")  # fmt: skip
        self._write(_SET_UP.encode())

    def _restart(self, state):
        self._bash.stdin.close()
        self._bash.wait()
        os.close(self._report)
        os.close(self._gone)
        self._start(state)

    def _write(self, data):
        try:
            self._bash.stdin.write(data)
            self._bash.stdin.flush()
        except BrokenPipeError:
            pass  # it has exited; `_answer` finds out

    def _answer(self):
        """The next report of bash, or None if it exited without one. Ignores interrupts, which are for bash."""
        while b"\0" not in self._pending:
            try:
                ready = [descriptor for descriptor, _ in self._ready.poll()]
            except KeyboardInterrupt:
                continue
            if self._report in ready:
                piece = os.read(self._report, 1 << 16)
                self._pending += piece
                if piece and len(self._pending) <= _MOST_REPORTED:
                    continue
            return None
        said, _, self._pending = self._pending.partition(b"\0")
        return said

    # ---- one cell ----

    def _run_cell(self, request):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._count += 1
        try:
            status = self._carry_out(request)
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
        self._channel.interrupts.forbid()
        self._status = status
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self._channel.send(
            event="done", cell=request["cell"], error=_error(status), count=self._count, value=str(status), cpu=cpu,
            peak=after.ru_maxrss * 1024,
        )  # fmt: skip

    def _carry_out(self, request):
        self._channel.interrupts.install()
        self._channel.interrupts.allow()
        self._channel.check_interrupted(request["cell"])
        status = f"__warmcell_status {self._status} || " if self._status else ""
        script = _RUN.format(status=status, code=shlex.quote(request["code"]), report=_REPORT)
        self._write(script.encode("utf-8", "surrogateescape"))
        while True:
            said = self._answer()
            if said is None:
                self._end()
            word, _, rest = said.partition(b"\n")
            kind, _, number = word.partition(b" ")
            if kind in (b"done", b"left") and number.isdigit():
                if kind == b"left":
                    self._restart(rest)
                return int(number) & 0xFF

    def _end(self):
        """Ends the session: bash was killed or replaced itself by exec."""
        os._exit(self._bash.wait() & 0x7F or 1)

    # ---- variables ----

    def _declarations(self):
        self._write(_LIST.format(report=_REPORT).encode())
        found = {}
        while True:
            said = self._answer()
            if said is None:
                self._end()
            if said.startswith(b"listed"):
                return found
            name, _, value = said.decode("utf-8", "replace").strip().partition("=")
            found[name.rpartition(" ")[2]] = value

    def _send_variables(self, request):
        found, room = {}, _MOST_CHARACTERS
        for name, value in self._declarations().items():
            if name in self._own_names or name.startswith(("_", "BASH", "FUNCNAME", "OLDPWD", "PIPESTATUS")):
                continue
            value = value if len(value) <= _LONGEST_VARIABLE else value[: _LONGEST_VARIABLE - 3] + "..."
            room -= len(name) + len(value)
            if room < 0:
                break
            found[name] = value
        self._channel.send(event="variables", cell=request["cell"], names=found, error=None)


def _error(status):
    if status == 0:
        return None
    if status == 128 + signal.SIGINT:
        return {"name": "KeyboardInterrupt", "message": "", "traceback": ""}
    return {"name": "ExitStatus", "message": f"exit status {status}", "traceback": ""}

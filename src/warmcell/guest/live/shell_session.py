"""The worker of a shell session: runs a bash, passes cells to it, and reads their exit statuses.

When that bash exits (by `exit`, a failure under `set -e` or an interrupt), a new one continues with its variables,
functions, options and directory. Bash leads a process group of its own: SIGINT from the host reaches this worker only,
which ignores it, and the message that names the interrupted cell decides whether bash gets one.
"""

import os
import resource
import select
import shlex
import signal
import subprocess

from . import trees
from .session_channel import Channel

_CONTROL = 3
_BASH = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.path.exists(path)), None)
#: The descriptor on which bash reports: far from the numbers that scripts use.
_REPORT = 250
#: A pipe to itself: bash reads its own trap, without a process that an interrupt could meet.
_NOTE, _NOTED = 251, 252
#: Longer reports are cut. A variable may be; a bash whose state would be cut cannot be continued.
_MOST_REPORTED = 4 * 1024 * 1024
#: A child of bash loses a signal that arrives between its fork and its exec.
_RESEND_MS = 50
_LONGEST_VARIABLE, _MOST_CHARACTERS = 1000, 64 * 1024

#: Reports once. The trap runs between two commands, perhaps of the report itself, which then goes on.
#: A cell's own EXIT trap takes the place of ours: `exit` and the end of the cell make it part of ours again.
_TRAP = "__warmcell_leave $?"
#: An interrupt between two cells, or while one of them exits, is ignored. Ours is sent when bash has begun the cell.
_SET_UP = f"""\
__warmcell_cell=0
__warmcell_idle=1
__warmcell_left=
__warmcell_reported=
__warmcell_exit=
__warmcell_status() {{ return "$1"; }}
__warmcell_report() {{
    [ -z "$__warmcell_reported" ] || return 0
    [ "$1" = leaving ] || __warmcell_reported=1
    {{
        builtin printf '\\0%s %d %d\\n' "$1" "$2" "$__warmcell_cell"
        declare -p; declare -f; alias -p; shopt -p; set +o
        builtin printf 'cd -- %q\\n' "$PWD"
        builtin printf '\\0'
    }} >&{_REPORT} 2>/dev/null
}}
__warmcell_leave() {{
    [ -z "$__warmcell_left" ] || return 0
    __warmcell_left=1
    if [ -n "$__warmcell_exit" ]; then
        __warmcell_report leaving "$1"
        case $- in *e*) set +e; __warmcell_left=e ;; esac
        __warmcell_status "$1"
        builtin eval "$__warmcell_exit"
        [ "$__warmcell_left" != e ] || set -e
    fi
    __warmcell_report left "$1"
    builtin trap - EXIT
    builtin exit "$1"
}}
__warmcell_adopt() {{
    local __warmcell_idle=1 __warmcell_found IFS=$'\\n'
    {{ builtin trap -p EXIT; builtin printf '\\0'; }} >&{_NOTE}
    builtin read -r -d '' __warmcell_found <&{_NOTED}
    [ "$__warmcell_found" != "trap -- "\\''{_TRAP}'\\'" EXIT" ] || return 0
    builtin eval "builtin set -- $__warmcell_found"
    __warmcell_exit=${{3-}}
    builtin trap '{_TRAP}' EXIT
}}
__warmcell_interrupt() {{
    [ -z "$__warmcell_idle$__warmcell_left" ] || return 0
    __warmcell_adopt
    __warmcell_leave {128 + signal.SIGINT}
}}
exit() {{
    builtin set -- "$?" "$@"
    if [ "$BASH_SUBSHELL" = 0 ]; then
        if [ -n "$__warmcell_left" ]; then __warmcell_report left "${{2-$1}}"; else __warmcell_adopt; fi
    fi
    builtin exit "${{@:$(($# > 1 ? 2 : 1))}}"
}}
builtin trap '{_TRAP}' EXIT
builtin trap __warmcell_interrupt INT
builtin printf 'ready\\n\\0' >&{_REPORT}
"""
_OWN_TRAP = f"trap -- '{_TRAP}' EXIT\n".encode()
#: Sets `$?` to the status of the previous cell, without triggering `set -e`. Two lines: an error that makes bash skip
#: the rest of a line (`exit 1 2`) does not skip the report. Each command has its own redirection: a cell's own INT trap
#: that runs between two of them does not print into the report.
_RUN = "__warmcell_cell={cell} __warmcell_idle= LINENO=0; builtin printf 'began\\0' >&{report}; \
{status}eval {code} </dev/null\n\
__warmcell_last=$? __warmcell_idle=1; builtin trap -p EXIT >&{report}; \
builtin printf '\\0done %d\\0' $__warmcell_last >&{report}\n"
_LIST = "for __name in $(compgen -v); do declare -p \"$__name\"; builtin printf '\\0'; done >&{report} 2>/dev/null; \
unset __name; builtin printf 'listed\\n\\0' >&{report}\n"
_SYNCHRONISE = f":; builtin printf 'synchronised\\n\\0' >&{_REPORT}\n"


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
        #: Whether bash has begun the cell, and whether the host has interrupted it.
        self._has_begun = self._is_interrupted = False
        #: The state of a bash that exited; of one that exits when the EXIT trap of a cell has run, however that ends.
        self._left = self._leaving = None
        #: The EXIT trap that the last cell left behind, as `trap -p` prints it.
        self._exit_trap = b""
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
        self._spawn(state)
        while self._next_report() is None:  # before "ready"
            if self._bash.wait() != -signal.SIGINT:
                self._end()
            # The host's signal met the new process before it had a group of its own.
            self._close()
            self._spawn(state)

    def _spawn(self, state):
        self._report, report = os.pipe()
        os.dup2(report, _REPORT, inheritable=True)
        os.close(report)
        noted, note = os.pipe()
        os.dup2(note, _NOTE, inheritable=True)
        os.dup2(noted, _NOTED, inheritable=True)
        os.close(note)
        os.close(noted)
        self._pending, self._leaving = b"", None
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-s"], executable=_BASH, stdin=subprocess.PIPE, bufsize=0,
            pass_fds=[_REPORT, _NOTE, _NOTED], process_group=0,
        )  # fmt: skip
        for descriptor in (_REPORT, _NOTE, _NOTED):
            os.close(descriptor)
        self._gone = os.pidfd_open(self._bash.pid)
        if state:
            self._write(b"eval " + shlex.quote(state.decode("utf-8", "surrogateescape")).encode(
                "utf-8", "surrogateescape") + b" 2>/dev/null >/dev/null\n")  # fmt: skip
        self._write(_SET_UP.encode())

    def _close(self):
        self._bash.wait()
        self._bash.stdin.close()
        os.close(self._report)
        os.close(self._gone)

    def _write(self, data):
        try:
            while data:
                data = data[self._bash.stdin.write(data) :]
        except BrokenPipeError:
            pass  # it has exited; `_next_report` finds out

    def _answer(self, *kinds, cell=None):
        """The next report of one of these kinds: its kind, its numbers, and the rest."""
        while True:
            said = self._next_report(cell)
            if said is None and self._leaving is None:
                self._end()
            word, _, rest = (self._leaving if said is None else said).partition(b"\n")
            kind, *numbers = word.split(b" ")
            if kind == b"trap":
                self._exit_trap = said
            if kind == b"leaving":
                self._leaving, kind = said, b"left" if said is None else kind
            if kind in (b"leaving", b"left") and len(word) + len(rest) >= _MOST_REPORTED - 1:
                self._give_up()
            if kind in kinds and all(number.isdigit() for number in numbers):
                return kind, [int(number) for number in numbers], rest

    def _next_report(self, cell=None):
        """None if bash exited without one. Interrupts `cell` when the host says so."""
        ready = select.poll()
        # In this order: a bash that is seen to have exited has written its last report before.
        for descriptor in (self._gone, self._report, *([self._channel.descriptor] if cell else [])):
            ready.register(descriptor, select.POLLIN)
        while True:
            if b"\0" in self._pending:
                said, _, self._pending = self._pending.partition(b"\0")
                if said != b"began":
                    return said
                self._has_begun = True
                if self._is_interrupted:
                    self._signal_group()
                continue
            pause = _RESEND_MS if self._is_interrupted and self._has_begun else None
            found = [descriptor for descriptor, _ in ready.poll(pause)]
            if self._channel.descriptor in found and self._channel.was_interrupted(cell):
                self._interrupt()
            if not found:
                trees.signal_unhandled(self._bash.pid, signal.SIGINT)
            if self._report in found:
                piece = os.read(self._report, 1 << 16)
                self._pending += piece
                if len(self._pending) > _MOST_REPORTED and b"\0" not in piece:
                    self._pending = self._pending[:_MOST_REPORTED]
                if piece:
                    continue
                return None
            if self._gone in found:
                return None

    def _interrupt(self):
        self._is_interrupted = True
        if self._has_begun:
            self._signal_group()

    def _signal_group(self):
        try:
            os.killpg(self._bash.pid, signal.SIGINT)
        except ProcessLookupError:
            pass  # it has exited

    # ---- one cell ----

    def _run_cell(self, request):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._count += 1
        self._status = self._carry_out(request["cell"], request["code"])
        self._await_interrupt()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self._channel.send(
            event="done", cell=request["cell"], error=_error(self._status), count=self._count, value=str(self._status),
            cpu=cpu, peak=after.ru_maxrss * 1024,
        )  # fmt: skip
        self._replace_bash()

    def _carry_out(self, cell, code):
        """Runs the cell and returns its exit status."""
        self._has_begun = self._is_interrupted = False
        if self._channel.was_interrupted(cell):
            return 128 + signal.SIGINT
        status = f"__warmcell_status {self._status} || " if self._status else ""
        script = _RUN.format(cell=cell, status=status, code=shlex.quote(code), report=_REPORT)
        while True:
            self._exit_trap = b""
            self._write(script.encode("utf-8", "surrogateescape"))
            kind, numbers, rest = self._answer(b"done", b"left", cell=cell)
            if kind == b"left":
                self._bash.wait()
                self._left = rest
            elif self._exit_trap != _OWN_TRAP:
                self._write(b"__warmcell_adopt\n")
            if kind == b"done" or self._is_interrupted or numbers[1:] == [cell]:
                return numbers[0] & 0xFF if numbers else 1
            self._replace_bash()  # it exited before it read this cell, for example by a signal between two cells

    def _await_interrupt(self):
        """Waits until bash has handled the signal: what a trap prints belongs to the interrupted cell."""
        if self._is_interrupted and self._left is None:
            self._write(_SYNCHRONISE.encode())
            kind, _, rest = self._answer(b"synchronised", b"left")
            self._left = rest if kind == b"left" else None
        self._is_interrupted = False

    def _replace_bash(self):
        """Starts a new bash with the state of one that exited."""
        if self._left is not None:
            self._close()
            self._start(self._left)
            self._left = None

    def _end(self):
        """Ends the session as bash ended: it was killed, replaced itself by exec, or exited without its EXIT trap."""
        status = self._bash.wait()
        if status < 0:
            if status != -signal.SIGKILL:
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status & 0xFF)

    def _give_up(self):
        """Ends the session: its state is too large for another bash."""
        os.write(2, b"bash: the variables and functions are too large to continue with after it exited\n")
        self._bash.kill()
        os._exit(1)

    # ---- variables ----

    def _declarations(self):
        self._write(_LIST.format(report=_REPORT).encode())
        found = {}
        while True:
            said = self._next_report()
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

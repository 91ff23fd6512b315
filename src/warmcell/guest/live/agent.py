"""The agent: the one guest of a live cage that the host talks to. It starts programs and reports exits.

It has no more rights than any other guest, and only this one cage depends on it: its death ends the cage, and an
imitation of it can only lie about its own programs. The host enforces timeouts and kills without its help.
"""

import _signal as signal  # without its enums, which take longer to make than the agent
import array
import ctypes
import errno
import importlib
import os
import socket

from . import frames, preloaded, relays, starting, trees
from .relays import READ, WRITE, Loop

PR_SET_CHILD_SUBREAPER = 36
_MOST_DESCRIPTORS = 16
#: Found when this is imported: mostly in the zygote, for all agents.
_prctl = ctypes.CDLL(None).prctl


def main():
    """Serves until the host disconnects. In a forked worker it returns the worker's main function."""
    control = socket.socket(fileno=starting.out_of_the_way(os.dup(0)))
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.chdir("/")
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become children of the agent
    return Agent(control).serve()


class Started:
    """A program that was started and whose exit has not been reported."""

    def __init__(self, mark):
        self.mark = mark
        self.terminal = -1
        #: The output of its terminal, which is forwarded before its exit is reported.
        self.output = None
        self.relay = None
        #: The directory with its files, removed when it exits.
        self.code_dir = ""


class Agent:
    """Answers requests in order, each with its number, and reports exits as they happen."""

    def __init__(self, control):
        self._control = control
        control.setblocking(False)
        self._decoder = frames.Decoder(frames.MOST_SENT)
        self._outgoing = bytearray()
        #: Received descriptors, one list for each request that has some.
        self._batches = []
        self._started = {}
        self._ended = []
        self._become = None
        self._loop = Loop()

    def serve(self):
        # Sockets, not a pipe: a guest could reopen a pipe through /proc and read our wake-ups.
        wake, signalled = (starting.out_of_the_way(end.detach()) for end in socket.socketpair())
        for end in (wake, signalled):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._wake = wake
        self._loop.watch(wake, READ, self._reap)
        self._listen()
        self._send({"event": "ready"})
        while self._become is None:
            self._loop.turn()
            self._report_exits()
        return self._become

    # ---- messages ----

    def _listen(self):
        self._loop.watch(self._control.fileno(), READ | (WRITE if self._outgoing else 0), self._converse)

    def _send(self, message):
        self._outgoing += frames.encode(message)
        self._flush()

    def _flush(self):
        try:
            while self._outgoing:
                del self._outgoing[: self._control.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            os._exit(0)  # the host is gone
        self._listen()

    def _converse(self):
        if self._outgoing:
            self._flush()
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        for request in self._decoder.feed(data):
            self._answer(request)
            if self._become is not None:
                return

    def _receive(self):
        size = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        data, rights, flags, _ = self._control.recvmsg(1 << 16, size, socket.MSG_CMSG_CLOEXEC)
        received = array.array("i")
        for level, kind, content in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
        if received or flags & socket.MSG_CTRUNC:
            self._batches.append(_keep(list(received)))
        return data

    def _answer(self, request):
        wanted = request.get("descriptors", 0)
        given = self._batches.pop(0) if wanted else []
        try:
            if len(given) != wanted:
                raise OSError(errno.EMFILE, "too many open files in the live cage")
            answer = getattr(self, "_op_" + request["op"])(request, given)
        except OSError as error:
            answer = {"error": error.strerror or str(error), "errno": error.errno or 0}
        finally:
            if self._become is None:
                for descriptor in given:
                    os.close(descriptor)
        if self._become is None and answer is not None:
            self._send({"id": request["id"], **answer})

    # ---- starting ----

    def _op_start(self, request, given):
        started = Started(request["mark"])
        files = request.get("files", [])
        given, contents = given[: len(given) - len(files)], given[len(given) - len(files) :]
        try:
            if files:
                started.code_dir = request["code_dir"]
                starting.write_files(started.code_dir, files, contents)
            return self._start(request, given, started)
        except OSError:
            _remove_files(started)
            raise

    def _start(self, request, given, started):
        env = {**request["env"], trees.MARK: started.mark}
        os.chdir(request["cwd"])
        try:
            if request.get("worker"):
                return self._start_worker(request, given, env, started)
            if request.get("pty"):
                return self._start_in_terminal(request, given, env, started)
            pid, reason = starting.program(request["argv"], env, starting.streams(given))
        finally:
            if self._become is None:
                os.chdir("/")
        self._started[pid] = started
        return {"pid": pid, "errno": reason}

    def _start_worker(self, request, given, env, started):
        """Imports the worker's module before the fork, so that only the first worker of a kind pays for it."""
        preloaded.use(request["worker"])
        module = importlib.import_module("warmcell_live." + request["worker"])
        pid = starting.worker(env, request["cwd"], given)
        if pid == 0:
            self._loop.forget_all()  # the worker has none of the agent's sockets
            self._ended.clear()
            self._become = module.main
            return None
        self._started[pid] = started
        return {"pid": pid, "errno": 0}

    def _start_in_terminal(self, request, given, env, started):
        """Relays between the terminal and the host's two pipes, for input and output.

        Opens everything first: a program that was started cannot be refused any more.
        """
        columns, rows = request["pty"]
        opened = []
        try:
            for pipe in given:
                opened.append(starting.out_of_the_way(os.dup(pipe)))
            terminal = starting.Terminal(columns, rows)
            opened.append(terminal.master)
            try:
                pid, reason = starting.program(request["argv"], env, terminal.streams())
            finally:
                os.close(terminal.held)
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        typed, shown, started.terminal = opened
        self._relay_terminal(pid, started, typed, shown)
        self._started[pid] = started
        return {"pid": pid, "errno": reason}

    def _relay_terminal(self, pid, started, typed, shown):
        master = started.terminal

        def forget_terminal():
            started.terminal = -1

        started.output = relays.Lane(master, shown, lambda: started.relay.end())
        # At the end of input the terminal gets Ctrl-D.
        inward = relays.Lane(typed, master, lambda: _write_quietly(master, b"\x04"))
        started.relay = _TerminalRelay(self._loop, [inward, started.output], forget_terminal)

    # ---- other requests ----

    def _op_resize(self, request, given):
        started = self._find_program(request["pid"])
        if started.terminal < 0:
            raise OSError(errno.ENOTTY, "it has no terminal")
        starting.resize(started.terminal, *request["pty"])
        return {}

    def _op_signal(self, request, given):
        """Signals the program, and unless `alone` its process group; with `tree`, kills all that it started."""
        pid, number = request["pid"], request["signal"]
        if request.get("tree"):
            self._kill_tree(pid, request["mark"])
            return {}
        self._find_program(pid)
        try:
            (os.kill if request.get("alone") else os.killpg)(pid, number)
        except ProcessLookupError:  # it has not called setsid yet
            os.kill(pid, number)
        return {}

    def _op_pause_all(self, request, given):
        """Stops everything in the cage but the programs with these pids."""
        trees.pause_all(set(request["spared"]))
        return {}

    def _op_resume_all(self, request, given):
        trees.resume_all()
        return {}

    def _kill_tree(self, pid, mark):
        """Works for a program that has ended, too. If its pid belongs to another process by now, that one is spared."""
        started = self._started.get(pid)
        # The kernel does not use a pid again while it is that of a session: what the program left has other pids.
        is_others = os.path.exists(f"/proc/{pid}") if started is None else started.mark != mark
        trees.kill(0 if is_others else pid, mark)

    def _op_connect(self, request, given):
        """Connects to a port on the cage's own loopback. Answers when the connection is established."""
        attempt = _Connection(self._loop, request["port"], os.dup(given[0]))
        attempt.begin(lambda answer: self._send({"id": request["id"], **answer}))
        return None

    def _find_program(self, pid):
        if pid not in self._started:
            raise OSError(errno.ESRCH, "it has ended")
        return self._started[pid]

    # ---- exits ----

    def _reap(self):
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):  # a traced program whose tracer has ended
                continue
            started = self._started.pop(pid, None)
            if started is not None:
                _remove_files(started)
                if started.output is not None:
                    started.output.take_all()
                    started.relay.turn()
                    if started.output.waiting:
                        self._send({"event": "ending", "pid": pid})
                self._ended.append((started, pid, status, used))

    def _report_exits(self):
        """The exit of a program with a terminal is reported after the last of its output.

        Until then the host knows that it is ending, and reads on for callers that do not.
        """
        for item in list(self._ended):
            started, pid, status, used = item
            if started.output is None or not started.output.waiting:
                self._ended.remove(item)
                cpu = round(used.ru_utime + used.ru_stime, 6)
                self._send({"event": "ended", "pid": pid, "status": status, "cpu": cpu, "peak": used.ru_maxrss * 1024})


class _TerminalRelay(relays.Relay):
    """Ends when the output ends; input that is left is dropped."""

    def end(self):
        for lane in self._lanes:
            lane.is_over = True


class _Connection:
    """Tries IPv4, then IPv6."""

    def __init__(self, loop, port, carried):
        self._loop, self._port = loop, port
        self._carried = socket.socket(fileno=starting.out_of_the_way(carried))
        self._addresses = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        self._reason = errno.ECONNREFUSED

    def begin(self, answer):
        self._answer = answer
        self._try_next()

    def _try_next(self):
        if not self._addresses:
            self._carried.close()
            self._answer({"error": os.strerror(self._reason), "errno": self._reason})
            return
        family, host = self._addresses.pop(0)
        try:
            made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            # Low numbers stay free for the agent itself: without one it could not look for processes to kill.
            self._socket = socket.socket(fileno=starting.out_of_the_way(made.detach()))
            self._socket.setblocking(False)
        except OSError as error:
            self._reason = error.errno
            self._try_next()
            return
        failure = self._socket.connect_ex((host, self._port))
        if failure == errno.EINPROGRESS:
            self._loop.watch(self._socket.fileno(), WRITE, self._settle)
        else:
            self._decide(failure)

    def _settle(self):
        self._loop.forget(self._socket.fileno())
        self._decide(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _decide(self, failure):
        if failure:
            self._reason = failure
            self._socket.close()
            self._try_next()
            return
        relays.join_sockets(self._loop, self._carried, self._socket, lambda: None)
        self._answer({})


def _keep(received):
    """The descriptors, out of the way. None of them if there is no room for all: their request is then refused."""
    kept = []
    try:
        while received:
            kept.append(starting.out_of_the_way(received.pop()))
    except OSError:
        for descriptor in (*kept, *received):
            os.close(descriptor)
        return []
    return kept[::-1]


def _remove_files(started):
    if started.code_dir:
        import shutil  # slow to import, and rarely needed

        shutil.rmtree(started.code_dir, ignore_errors=True)


def _write_quietly(descriptor, data):
    try:
        os.write(descriptor, data)
    except OSError:
        pass  # the reader is gone

"""Starting one thing in the live cage: a program, by exec; or a worker of ours, as a fork of the warm interpreter."""

import _signal as signal  # without its enums, which take longer to make than the agent
import fcntl
import os
import struct
import sys

from . import trees

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
#: What Python ignores or catches, and a program must find as the kernel set it.
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT)
_FIRST_OWN = 16
#: Unlock it, and ask for its number: not in `termios` of every Python.
_TIOCSPTLCK, _TIOCGPTN = 0x40045431, 0x80045430


def out_of_the_way(descriptor):
    """A number that is no program's standard stream or control socket."""
    if descriptor >= _FIRST_OWN:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN)
    os.close(descriptor)
    return moved


def program(argv, env, actions):
    """The pid, and why it could not be executed: then it is a process that says so and ends, as a shell would have it.

    `actions` give it its descriptors. It leads a session of its own.
    """
    path = _place_of(argv[0], env)
    try:
        return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_DEFAULTS), 0
    except OSError as error:
        if not _is_about(path, error):
            raise
        return _excuse(argv[0], error, actions), error.errno


def _is_about(path, error):
    """Whether it is the program that is wrong, or there is no room for another process."""
    return error.errno not in (11, 12)  # EAGAIN, ENOMEM


def _place_of(name, env):
    """By the PATH of the one who will run it. What is there says more than what is not."""
    if "/" in name:
        return name
    places = [os.path.join(place or ".", name) for place in env.get("PATH", os.defpath).split(":")]
    there = [place for place in places if os.path.isfile(place)]
    return next((place for place in there if os.access(place, os.X_OK)), (there or places)[0])


def _excuse(name, error, actions):
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _carry_out(actions)
            what = "command not found" if error.errno == 2 and "/" not in name else os.strerror(error.errno)
            os.write(2, f"{name}: {what}\n".encode("utf-8", "surrogateescape"))
        finally:
            os._exit(_NOT_FOUND if error.errno in (2, 20, 40, 36) else _NOT_EXECUTABLE)
    return pid


def _carry_out(actions):
    for kind, *arguments in actions:
        if kind == os.POSIX_SPAWN_OPEN:
            target, path, flags, mode = arguments
            opened = os.open(path, flags, mode)
            os.dup2(opened, target)
        else:
            os.dup2(*arguments)


def write_files(directory, names, contents):
    """Copies what the host sent along, one descriptor for each file; all may be executed."""
    os.makedirs(directory)
    for name, content in zip(names, contents):
        with open(os.path.join(directory, name), "xb") as file:
            os.chmod(file.fileno(), 0o755)
            while data := os.read(content, 1 << 20):
                file.write(data)


def streams(descriptors):
    """For a program whose descriptors the host made: 0, 1, 2 and further."""
    return [(os.POSIX_SPAWN_DUP2, descriptor, target) for target, descriptor in enumerate(descriptors)]


def worker(env, cwd, descriptors):
    """Forks. The pid; 0 in the worker, which has its descriptors and nothing else of the agent's."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target, inheritable=target < 3)
    os.closerange(max(3, len(descriptors)), os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(":"))]
    return 0


class Terminal:
    """A pseudo-terminal of the cage's own devpts, seen from the side of the one who types."""

    def __init__(self, columns, rows):
        self.master = out_of_the_way(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        fcntl.ioctl(self.master, _TIOCSPTLCK, struct.pack("i", 0))
        (number,) = struct.unpack("i", fcntl.ioctl(self.master, _TIOCGPTN, struct.pack("i", 0)))
        self._path = f"/dev/pts/{number}"
        # Held until the program has it: a terminal that everybody has closed looks to us as if its program had ended.
        self.held = out_of_the_way(os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        resize(self.master, columns, rows)

    def streams(self):
        """Opened by the leader of a new session, it becomes that session's controlling terminal."""
        opened = (os.POSIX_SPAWN_OPEN, 0, self._path, os.O_RDWR, 0)
        return [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]


def resize(master, columns, rows):
    import termios  # a library of its own, and most programs have no terminal

    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def environment(env, mark):
    return {**env, trees.MARK: mark}

"""Starts programs (by exec) and our own workers (as forks of the warm interpreter) in the live cage."""

import _signal as signal  # without its enums, which take longer to make than the agent
import fcntl
import os
import struct
import sys

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
#: Signals that Python ignores or handles; programs get the default action.
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT)
_FIRST_OWN = 16
#: Unlock the terminal and get its number: ioctls that not every `termios` has.
_TIOCSPTLCK, _TIOCGPTN = 0x40045431, 0x80045430


def out_of_the_way(descriptor):
    """Moves the descriptor above the numbers of standard streams and control sockets. Closes it if there is no room."""
    if descriptor >= _FIRST_OWN:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN)
    finally:
        os.close(descriptor)


def program(argv, env, actions):
    """Starts a program. Returns its pid and the errno of exec, or 0.

    If exec fails, the process prints why and exits as a shell would. `actions` set up its descriptors. It leads its own
    session.
    """
    path = _place_of(argv[0], env)
    try:
        return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_DEFAULTS), 0
    except OSError as error:
        if error.errno in (11, 12):  # EAGAIN, ENOMEM: not about the program, but a lack of processes or memory
            raise
        return _excuse(argv[0], error, actions), error.errno


def _place_of(name, env):
    """Looks the program up in its own PATH. Prefers a file that is not executable to none, for a better error."""
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
    """Copies the files that the host sent, one descriptor each, and makes them executable."""
    os.makedirs(directory)
    for name, content in zip(names, contents):
        with open(os.path.join(directory, name), "xb") as file:
            os.chmod(file.fileno(), 0o755)
            while data := os.read(content, 1 << 20):
                file.write(data)


def streams(descriptors):
    """Actions that make the host's descriptors 0, 1, 2 and so on."""
    return [(os.POSIX_SPAWN_DUP2, descriptor, target) for target, descriptor in enumerate(descriptors)]


def worker(env, cwd, descriptors):
    """Forks a worker. Returns its pid, or 0 in the worker, which has only its own descriptors.

    It ignores SIGINT, as the agent does, until it has a handler: the host may interrupt its first cell before that, and
    says so by a message as well.
    """
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target, inheritable=target < 3)
    os.closerange(max(3, len(descriptors)), os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(":"))]
    return 0


class Terminal:
    """The master side of a pseudo-terminal of the cage's own devpts."""

    def __init__(self, columns, rows):
        self.master = out_of_the_way(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        try:
            fcntl.ioctl(self.master, _TIOCSPTLCK, struct.pack("i", 0))
            (number,) = struct.unpack("i", fcntl.ioctl(self.master, _TIOCGPTN, struct.pack("i", 0)))
            self._path = f"/dev/pts/{number}"
            resize(self.master, columns, rows)
            # Held until the program has it open: a terminal without users reads like one whose program has ended.
            self.held = out_of_the_way(os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            os.close(self.master)
            raise

    def streams(self):
        """Actions that open the terminal in the session leader, which makes it the controlling terminal."""
        opened = (os.POSIX_SPAWN_OPEN, 0, self._path, os.O_RDWR, 0)
        return [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]


def resize(master, columns, rows):
    import termios  # imported late: most programs have no terminal

    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

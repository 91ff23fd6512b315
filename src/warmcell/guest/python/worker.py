"""Runs a guest's Python in an interpreter that is already warm, so that the program cannot tell.

Loaded by the zygote before it forks (`prepare`), and used once in each guest process, inside the finished cage
(`warm_up`, then `run`). What a script sees (`__main__`, `sys.argv`, tracebacks, the way it ends) is what it would see
under `python3 main.py`.
"""

import builtins
import gc
import os
import sys
from _frozen_importlib_external import SourceFileLoader  # where importlib.machinery has it from, with more to load
from types import ModuleType

# The file beside this one, which was loaded before it.
from warmcell_ending import (
    INTERRUPTED,
    begin,
    end_as_any_interpreter,
    end_at_once,
    is_end_unnoticed,
    note_libraries,
    rehearse_end,
)

_REPORT = ".warmcell-report"


_ASK_FOR_NO_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: What guests find unless they are given another, as one text: to compare two mappings is to write to all that is in
#: both, in each guest.
_environment = []


def prepare(with_site, preload):
    """In the zygote: the interpreter's own site, when the caller chose it, and the modules to have ready.

    Returns what is wrong, or "".
    """
    import site

    if with_site:
        site.main()
    else:
        site.setquit()
        site.setcopyright()
        site.sethelper()
    for name in _ASK_FOR_NO_THREADS:
        os.environ[name] = "1"  # a thread pool made before the fork would be dead after it
    settings = _directory_for_settings() if preload else ""
    try:
        for name in preload:
            try:
                __import__(name)
            except BaseException as error:
                return f"cannot import {name!r} with {sys.executable}: {type(error).__name__}: {error}"
    finally:
        _remove_settings(settings)
    for name in _ASK_FOR_NO_THREADS:
        os.environ.pop(name, None)
    _environment.append(repr(dict(os.environ)))
    if not with_site and not preload:
        note_libraries()
    compile("", "main.py", "exec")  # the first call makes a hundred classes
    running = len(os.listdir("/proc/self/task"))
    if running > 1:
        return f"{', '.join(preload)} started {running - 1} thread(s), which a fork cannot carry over"
    return ""


def _directory_for_settings():
    """matplotlib, imported where its settings cannot be written, leaves a directory on the host, and each guest then
    fails at its exit to remove it. So it gets one, that nobody else can have put anything into.
    """
    path = "/tmp/.settings-" + os.urandom(8).hex()
    try:
        os.mkdir(path, 0o700)
    except OSError:
        return ""
    os.environ["MPLCONFIGDIR"] = path
    return path


def _remove_settings(path):
    if not path:
        return
    del os.environ["MPLCONFIGDIR"]
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


_WARM_UP = """
import io
class Warm:
    def __init__(self, value): self.value = value
    def twice(self): return [item * 2 for item in range(self.value)]
def call(*args, **kwargs): return {key: f"{value!r}" for key, value in kwargs.items()}
try: raise ValueError("warm")
except ValueError as error: text = str(error)
print(Warm(3).twice(), call(a=1), "%s" % text, file=io.StringIO())
print(end="")
"""


def warm_up():
    """Runs a little of everything, from the first line of a job to the last, so that copying the pages it touches is
    over before the job comes.
    """
    path, before = "/code/main.py", sys.modules["__main__"]
    _set_environment(dict(os.environ))
    _set_interpreter(path, ())
    del sys.path[0]
    begin()
    sys.modules["__main__"] = _main_module(path)
    _execute(_WARM_UP.encode(), path)
    sys.modules["__main__"] = before
    if "threading" in sys.modules:
        sys.modules["threading"].current_thread()
    gc.collect(0)
    _write_report("/code")
    rehearse_end()


def _main_module(path):
    module = ModuleType("__main__")
    module.__dict__.update(
        __builtins__=builtins,
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
    )
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    return module


def run(job):
    """Runs the job's main file to its end and ends the process the way the interpreter would. Never returns."""
    path = f"{job.code_dir}/{job.main}"  # and no call: every function is a page or two to copy
    _set_environment(job.env)
    _set_interpreter(path, job.argv)
    if job.is_heard:
        sys.stdout.reconfigure(line_buffering=True)  # as on a terminal
    gc.freeze()  # from here on, what the collector lists is the guest's
    begin()
    sys.modules["__main__"] = _main_module(path)
    status = _execute(job.files[job.main], path)
    _write_report(job.code_dir)
    if is_end_unnoticed():
        end_at_once(status)
    end_as_any_interpreter(status)


def _set_environment(env):
    """Where it is the one that the zygote has, nothing is touched, and no page copied."""
    if repr(env) not in _environment:
        os.environ.clear()
        os.environ.update(env)


#: What modules that a preload brought remember of the host they were imported on.
_HOST_MEMORIES = (("platform", "_uname_cache"), ("uuid", "_node"))


def _set_interpreter(path, argv):
    sys.argv[:] = [path, *argv]
    sys.orig_argv[:] = [sys.executable, path, *argv]
    sys.path.insert(0, os.getcwd())


def forget_the_zygote():
    """What a new interpreter would not have: the host's name, the state of generators."""
    for module, name in _HOST_MEMORIES:
        if module in sys.modules and hasattr(sys.modules[module], name):
            setattr(sys.modules[module], name, None)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _execute(source, path):
    """The exit status. What the interpreter itself must tell or decide leaves here as the `SystemExit` it is."""
    try:
        exec(compile(source, path, "exec", dont_inherit=True), sys.modules["__main__"].__dict__)
    except SystemExit as request:
        _flush_as_after_a_script()
        if type(request) is SystemExit and request.code is None:
            return 0
        if type(request) is SystemExit and type(request.code) is int and abs(request.code) < 2**31:
            return request.code & 0xFF
        raise
    except BaseException as error:
        _flush_as_after_a_script()
        # The first entry of the traceback is this function, which the guest's author never wrote.
        last = _report_uncaught(error, error.__traceback__.tb_next if error.__traceback__ else None)
        return INTERRUPTED if _is_interrupt(error) or (_is_interrupt(last) and _KNOWS_SUBCLASSES) else 1
    _flush_as_after_a_script()
    return 0


def _flush_as_after_a_script():
    """The interpreter does this once after a file, before it tells of an exception; what goes wrong is not told."""
    for name in ("stderr", "stdout"):
        try:
            getattr(sys, name).flush()
        except Exception:  # told at the very end, if it still is so
            pass


#: Since 3.14 an interrupt is one by whatever class, and wherever it came from.
_KNOWS_SUBCLASSES = sys.version_info >= (3, 14)


def _is_interrupt(error):
    return isinstance(error, KeyboardInterrupt) if _KNOWS_SUBCLASSES else type(error) is KeyboardInterrupt


def _report_uncaught(error, trace):
    """Returns what the guest's own hook raised instead of reporting, or None."""
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if isinstance(error, OSError):
        _note_refusal(error)
    try:
        hook = sys.excepthook
    except AttributeError:
        _write_stderr("sys.excepthook is missing")
        sys.__excepthook__(type(error), error, trace)
        return None
    try:
        hook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as second:
        second.__context__ = None
        second.__traceback__ = second.__traceback__.tb_next
        _write_stderr("Error in sys.excepthook:")
        sys.__excepthook__(type(second), second, second.__traceback__)
        _write_stderr("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, trace)
        return second
    return None


def _write_stderr(line):
    if sys.stderr is not None:
        print(line, file=sys.stderr)


_refusals = []


def _note_refusal(error):
    for name in (error.filename, error.filename2):
        if isinstance(name, (str, bytes)) and error.errno in (1, 2, 13, 30):
            _refusals.append(os.fsencode(name))


def _write_report(code_dir):
    if _refusals:
        try:
            with open(os.path.join(code_dir, _REPORT), "xb") as file:
                file.write(b"\0".join(_refusals[:8]))
        except OSError:
            pass

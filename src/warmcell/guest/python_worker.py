"""Runs a guest's Python in an interpreter that is already warm, so that the program cannot tell.

Loaded by the zygote before it forks (`prepare`), and used once in each guest process, inside the finished cage
(`warm_up`, then `run`). What a script sees (`__main__`, `sys.argv`, tracebacks, the way it ends) is what it would see
under `python3 main.py`.
"""

import atexit
import builtins
import gc
import io
import os
import signal
import sys
import threading
from importlib.machinery import SourceFileLoader
from types import ModuleType

_REPORT = ".warmcell-report"
_own_modules = frozenset()


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
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a thread pool made before the fork would be dead after it
    for name in preload:
        try:
            __import__(name)
        except BaseException as error:
            return f"cannot import {name!r} with {sys.executable}: {type(error).__name__}: {error}"
    running = len(os.listdir("/proc/self/task"))
    if running > 1:
        return f"{', '.join(preload)} started {running - 1} thread(s), which a fork cannot carry over"
    global _own_modules
    _own_modules = frozenset(sys.modules)
    return ""


_WARM_UP = """
import io
class Warm:
    def __init__(self, value): self.value = value
    def twice(self): return [item * 2 for item in range(self.value)]
def call(*args, **kwargs): return {key: f"{value!r}" for key, value in kwargs.items()}
try: raise ValueError("warm")
except ValueError as error: text = str(error)
print(Warm(3).twice(), call(a=1), "%s" % text, file=io.StringIO())
"""


def warm_up():
    """Runs a little of everything, so that copying the pages it touches is over before the job comes."""
    module = _main_module("/code/main.py")
    exec(compile(_WARM_UP.encode(), "/code/main.py", "exec", dont_inherit=True), module.__dict__)
    _set_environment(dict(os.environ))
    _set_interpreter("/code/main.py", ())
    del sys.path[0]
    _flush_standard_streams()
    threading.current_thread()
    gc.collect(0)


def _main_module(path):
    module = ModuleType("__main__")
    module.__dict__.update(
        __builtins__=builtins,
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __annotations__={},
    )
    return module


def run(job):
    """Runs the job's main file to its end and ends the process the way the interpreter would. Never returns."""
    path = os.path.join(job.code_dir, job.main)
    _set_environment(job.env)
    _set_interpreter(path, job.argv)
    module = _main_module(path)
    sys.modules["__main__"] = module
    status = _execute(job.files[job.main], path, module)
    _finish(status, job.code_dir)


def _set_environment(env):
    os.environ.clear()
    os.environ.update(env)


#: What modules that a preload brought remember of the host they were imported on.
_HOST_MEMORIES = (("platform", "_uname_cache"), ("uuid", "_node"))


def _set_interpreter(path, argv):
    sys.argv[:] = [path, *argv]
    sys.orig_argv[:] = [sys.executable, path, *argv]
    sys.path.insert(0, os.getcwd())


def forget_the_zygote():
    """What a new interpreter would not have: our own modules, the host's name, the state of generators."""
    for name in [name for name in sys.modules if name == "cage" or name.startswith("cage.")]:
        del sys.modules[name]
    for module, name in _HOST_MEMORIES:
        if module in sys.modules and hasattr(sys.modules[module], name):
            setattr(sys.modules[module], name, None)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _execute(source, path, module):
    try:
        code = compile(source, path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit as request:
        return _exit_status(request)
    except BaseException as error:
        # The first entry of the traceback is this function, which the guest's author never wrote.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        return _report_uncaught(error, trace)
    return 0


def _exit_status(request):
    code = request.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    _flush(sys.stdout)
    print(code, file=sys.stderr)
    return 1


def _report_uncaught(error, trace):
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.last_exc = error
    hook = sys.excepthook
    try:
        hook(type(error), error, trace)
    except SystemExit as request:
        return _exit_status(request)
    except BaseException as second:
        print("Error in sys.excepthook:", file=sys.stderr)
        second.__context__ = None
        second.__traceback__ = second.__traceback__.tb_next if second.__traceback__ else None
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    if isinstance(error, OSError):
        _note_refusal(error)
    return 1


_refusals = []


def _note_refusal(error):
    for name in (error.filename, error.filename2):
        if isinstance(name, (str, bytes)) and error.errno in (1, 2, 13, 30):
            _refusals.append(os.fsencode(name))


def _flush(stream):
    """Flushes as the interpreter does at exit; returns the error, if any."""
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except Exception as error:
        return error
    return None


def _finish(status, code_dir):
    """What Py_FinalizeEx does that a program can notice, in its order, without freeing what the fork shared."""
    _quietly(threading._shutdown)
    _quietly(atexit._run_exitfuncs)
    is_flushed = _flush_standard_streams()
    _drop_modules()
    for stream in (sys.stdout, sys.stderr):
        is_flushed = _flush(stream) is None and is_flushed
    _write_report(code_dir)
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(120 if not is_flushed and status == 0 else status)


def _quietly(function):
    try:
        function()
    except SystemExit:
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())


def _flush_standard_streams():
    error = _flush(sys.stdout)
    if error is not None:
        _tell_ignored(error, sys.stdout)
    _flush(sys.stderr)
    return error is None


def _tell_ignored(error, culprit):
    """What the interpreter prints about errors that nobody can catch any more; it no longer shows source lines."""
    lines = [f"Exception ignored in: {culprit!r}"]
    trace = error.__traceback__
    if culprit is not sys.stdout:
        lines.append("Traceback (most recent call last):")
        while trace is not None:
            code = trace.tb_frame.f_code
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
            trace = trace.tb_next
    text = str(error)
    lines.append(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    print("\n".join(lines), file=sys.stderr)


def _drop_modules():
    """Lets go of what the program made, so that its finalisers run; `__main__` first, as the interpreter does."""
    main = sys.modules.get("__main__")
    names = [name for name in sys.modules if name not in _own_modules and name != "__main__"]
    spaces = [main.__dict__] if main else []
    spaces += [sys.modules[name].__dict__ for name in reversed(names) if isinstance(sys.modules[name], ModuleType)]
    if main is not None and not _has_finalisers(spaces[0]) and len(spaces) == 1:
        return
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = lambda args: _tell_ignored(args.exc_value, args.object)
    for space in spaces:
        for private in (True, False):
            for name in list(space):
                if name != "__builtins__" and name.startswith("_") is private:
                    space[name] = None
    gc.collect()


def _has_finalisers(space):
    plain = (str, bytes, int, float, bool, type(None), ModuleType)
    return any(not isinstance(value, plain) for name, value in space.items() if not name.startswith("__"))


def _write_report(code_dir):
    if _refusals:
        try:
            with open(os.path.join(code_dir, _REPORT), "xb") as file:
                file.write(b"\0".join(_refusals[:8]))
        except OSError:
            pass


_keep = io  # imported for the warm pages that every print touches

"""Runs a guest's Python in a warm interpreter, with no difference for the program.

The zygote loads it before it forks (`prepare`), and each guest process uses it once, in the locked cage (`warm_up`,
then `run`). A script sees (`__main__`, `sys.argv`, tracebacks, its exit) what it would see under `python3 main.py`.
"""

import builtins
import gc
import os
import sys
from _frozen_importlib_external import SourceFileLoader  # as importlib.machinery has it, which loads more

# The file beside this one, which the zygote loads first.
from warmcell_interpreter_exit import (
    INTERRUPTED,
    begin,
    end_as_any_interpreter,
    end_at_once,
    forget_silent_finalizers,
    is_end_unnoticed,
    note_libraries,
    rehearse_end,
)

_REPORT = ".warmcell-report"
ModuleType = type(sys)  # `types`, as any file of Python, takes long to load in an image


#: Variables that keep libraries from starting threads when they are imported.
_NO_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow, which pandas imports where it is installed
}
#: What a library loads and sets up when it is first used, and every guest would repeat: 7 ms to show a tensor.
_FIRST_USES = {
    "numpy": lambda numpy: repr(numpy.ones((2, 2)) @ numpy.ones(2)),
    "pandas": lambda pandas: repr(pandas.DataFrame({"a": [1.5, 2], "b": ["c", "d"]})),
    "torch": lambda torch: repr((torch.ones(2, 2) @ torch.ones(2)).sum()),
}
#: The default environment of guests, as one text: comparing two mappings would write to the reference counts of all
#: their items in each guest.
_environment = []


def prepare(with_site, preload):
    """In the zygote: the interpreter's own site, when the caller chose it, and the modules to have ready.

    Returns None, or the step that failed and why.
    """
    import site

    note_libraries()
    problem = None
    if with_site or preload:
        problem = _load_callers_modules(site, with_site, preload)
    else:
        _set_up_site(site)
    _environment.append(repr(dict(os.environ)))
    note_libraries()
    forget_silent_finalizers()
    compile("", "main.py", "exec")  # the first call makes a hundred classes
    return problem


def _set_up_site(site):
    site.setquit()
    site.setcopyright()
    site.sethelper()


def _load_callers_modules(site, with_site, preload):
    """What they print goes nowhere: left in a buffer, it would be in the output of every guest."""
    os.environ.update(_NO_THREADS)  # a thread that runs before the fork is gone after it
    settings = _directory_for_settings() if preload else ""
    stdout, nowhere = os.dup(1), os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, 1)
    try:
        site.main() if with_site else _set_up_site(site)
        return _import_all(preload)
    finally:
        sys.__stdout__.flush()
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)
        _remove_settings(settings)
        for name in _NO_THREADS:
            os.environ.pop(name, None)


def _import_all(preload):
    started = []
    plain_import = builtins.__import__

    def watching_import(name, *arguments, **options):
        """The innermost import after which there is a new thread started it."""
        is_new = name not in sys.modules
        module = plain_import(name, *arguments, **options)
        if is_new and not started and _threads() > 1:
            started.append(name)
        return module

    builtins.__import__ = watching_import
    try:
        for name in preload:
            try:
                watching_import(name)
            except BaseException as error:
                return "preload", f"cannot import {name!r} with {sys.executable}: {type(error).__name__}: {error}"
        for name in preload:
            _use_once(name)
    finally:
        builtins.__import__ = plain_import
    if problem := _gpu_in_use(preload):
        return "preload without a GPU", problem
    count = _threads() - 1
    if not count:
        return None
    culprit = started[0] if started else ", ".join(preload) or "a file of its site-packages"
    return "preload without threads", f"{culprit} starts {count} thread(s) when it is imported"


def _use_once(name):
    if name in _FIRST_USES:
        try:
            _FIRST_USES[name](sys.modules[name])
        except Exception:  # guests will meet it where they use the library
            pass


def _gpu_in_use(preload):
    """What opened a GPU, or None. Guests are forks, in which every use of the device would fail."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "torch.cuda was initialized when " + ", ".join(preload) + " was imported"
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")):
            return ", ".join(preload) + " opens " + target + " when it is imported"
    return None


def _threads():
    return len(os.listdir("/proc/self/task"))


def _directory_for_settings():
    """For matplotlib: where it cannot write its settings, it leaves a directory on the host, which each guest then
    fails to remove at exit. The name is random, so that no other process can have put anything there.
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
    """Goes through everything that a job does, so that the pages that it touches are copied before the job comes."""
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
    """Runs the job's main file and exits as the interpreter would. Never returns."""
    path = f"{job.code_dir}/{job.main}"  # not os.path.join: every function call copies a page or two
    _set_environment(job.env)
    _set_interpreter(path, job.argv)
    if job.is_streamed:
        sys.stdout.reconfigure(line_buffering=True)  # as on a terminal
    gc.freeze()  # from here on, the collector only lists objects of the guest
    begin()
    sys.modules["__main__"] = _main_module(path)
    status = _execute(job.files[job.main], path)
    _write_report(job.code_dir)
    if is_end_unnoticed():
        end_at_once(status)
    end_as_any_interpreter(status)


def _set_environment(env):
    """If it is the zygote's, nothing is touched, and no page copied."""
    if repr(env) not in _environment:
        os.environ.clear()
        os.environ.update(env)


#: What preloaded modules remember of the host.
_HOST_MEMORIES = (("platform", "_uname_cache"), ("uuid", "_node"))


def _set_interpreter(path, argv):
    sys.argv[:] = [path, *argv]
    sys.orig_argv[:] = [sys.executable, path, *argv]
    sys.path.insert(0, os.getcwd())


def reset_state():
    """Removes what a new interpreter would not have: the host's name, the state of random generators."""
    for module, name in _HOST_MEMORIES:
        if module in sys.modules and hasattr(sys.modules[module], name):
            setattr(sys.modules[module], name, None)
    generators = (sys.modules.get("numpy.random"), getattr(sys.modules.get("torch"), "default_generator", None))
    for generator in generators:
        if generator is not None:
            generator.seed()


def _execute(source, path):
    """The exit status. A `SystemExit` that the interpreter itself must report or interpret is raised."""
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
        # The first entry of the traceback is this function, which is not part of the guest.
        last = _report_uncaught(error, error.__traceback__.tb_next if error.__traceback__ else None)
        return INTERRUPTED if _is_interrupt(error) or (_is_interrupt(last) and _KNOWS_SUBCLASSES) else 1
    _flush_as_after_a_script()
    return 0


def _flush_as_after_a_script():
    """As the interpreter does after a file, before it reports an exception; errors are not reported."""
    for name in ("stderr", "stdout"):
        try:
            getattr(sys, name).flush()
        except Exception:  # reported at exit, if it still fails
            pass


#: Since 3.14 subclasses of KeyboardInterrupt count, and those raised by excepthook.
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

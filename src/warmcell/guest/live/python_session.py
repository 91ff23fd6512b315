"""The worker of a Python session: one interpreter, one thread, cells one after the other.

The agent forks it from its warm interpreter; it has no rights beyond the cage's. Descriptor 3 carries cells in and
displays out; printed output goes to the pipes at 1 and 2.
"""

import __future__

import _ast  # `ast` and `inspect` are slow to import
import builtins
import gc
import linecache
import os
import resource
import sys
import time
from types import ModuleType

from . import preloaded, session_display, session_magics, session_modules, session_streams
from .session_channel import PIECE, Channel

#: Descriptors: the channel to the host, where a forkable session writes its image, and where a fork reads its own.
_CONTROL, _IMAGE_OUT, _IMAGE_IN = 3, 4, 5
#: A high number: restored descriptors get the numbers that they had in the original session.
_IMAGE_PLACE = 200
_AWAIT = 0x2000  # PyCF_ALLOW_TOP_LEVEL_AWAIT of `ast`
_COROUTINE = 0x80  # CO_COROUTINE of `inspect`
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag
#: Limits in characters: all variables together, which go in one frame, and one variable.
_MOST_CHARACTERS, _LONGEST_VARIABLE = 64 * 1024, 1000


def main():
    """Serves cells until the host disconnects. Never returns."""
    image = _set_aside(_IMAGE_IN, _IMAGE_PLACE)
    if image is not None:
        preloaded.use("session_image")
        from . import session_image  # noqa: F401  # slow, and the host has not asked for the image yet
    _seed_libraries()
    session = Session(Channel(_CONTROL), image)
    gc.freeze()
    while True:
        session.serve_one()


def _seed_libraries():
    """Sessions are forks of one process, and preloaded libraries would draw the same numbers in each of them."""
    generators = (sys.modules.get("numpy.random"), getattr(sys.modules.get("torch"), "default_generator", None))
    for generator in generators:
        if generator is not None:
            generator.seed()


class Session:
    def __init__(self, channel, image=None):
        self._channel, self._image = channel, image
        self._interrupts = channel.interrupts
        self._count = 0
        self._flags = 0
        self._result = None
        self._loop = None
        self._module = ModuleType("__main__")
        self._namespace = self._module.__dict__
        self._namespace["__builtins__"] = builtins
        sys.modules["__main__"] = self._module
        sys.argv[:] = [""]
        self._streams = session_streams.Streams(channel)
        self._screen = session_display.Screen(channel, self._streams, PIECE)
        adapting = session_modules.install(self._screen)
        if os.environ.get("E2B_SANDBOX") == "true":  # set for everything in sandboxes of the E2B API
            session_display.install_e2b(self._screen, adapting)
        builtins.display = self._screen.display
        builtins.update_display = self._screen.update_display
        builtins.clear_output = self._screen.clear_output
        builtins.__magic__ = session_magics.Magics(self._namespace, self._run_nested, session_streams.flush)
        self._interrupts.install()
        self._descriptors = _open_descriptors()
        #: CPU seconds used up to the end of the last cell.
        self._cpu = time.process_time()

    def serve_one(self):
        self._let_tasks_run()
        request = self._channel.receive()
        if request["op"] == "run":
            self._run_cell(request)
        elif request["op"] == "variables":
            self._send_variables(request)
        elif request["op"] in ("branch", "resume"):
            work = self._write_image if request["op"] == "branch" else lambda: self._read_image(**request["how"])
            error = self._run_guarded(work, request["cell"])
            described = None if error is None else session_streams.describe(error)
            self._channel.send(event="done", cell=request["cell"], error=described)

    def _run_cell(self, request):
        self._count += 1
        self._result = None
        self._screen.begin_cell()
        self._streams.begin_cell(request["mark"])
        error = self._run_guarded(lambda: self._evaluate(request["code"]), request["cell"])
        self._end_cell(request["cell"], error)

    def _run_guarded(self, work, cell):
        """Calls `work` and returns the exception that it raised, or None. Interrupts reach guest code only in here."""
        self._interrupts.install()
        try:
            try:
                self._interrupts.allow()
                self._channel.check_interrupted(cell)
                work()
            finally:
                self._interrupts.is_allowed = False  # not by a call: an interrupt may come when one begins
        except BaseException as error:
            return error
        return None

    def _end_cell(self, number, error):
        if not self._channel.is_ours:
            session_streams.end_fork(error)
        self._interrupts.install()
        session_streams.flush()
        used = resource.getrusage(resource.RUSAGE_SELF)
        before, self._cpu = self._cpu, used.ru_utime + used.ru_stime
        cpu, peak = self._cpu - before, used.ru_maxrss * 1024
        if error is None and self._result is None:
            self._channel.send_text(f'{{"event":"done","cell":{number},"cpu":{cpu:.6f},"peak":{peak}}}')
            return
        described = None if error is None else session_streams.describe(error)
        self._channel.send(event="done", cell=number, error=described, result=self._result, cpu=cpu, peak=peak)

    # ---- one cell ----

    def _evaluate(self, source):
        filename = f"<cell {self._count}>"
        linecache.cache[filename] = (len(source), None, [line + "\n" for line in source.split("\n")], filename)
        value = self._execute(source, filename)
        if value is not None and not source.rstrip().endswith(";"):
            builtins._ = value
            self._result = self._screen.result(value)
        self._screen.show_figures()

    def _execute(self, source, filename):
        """The value of the last line if that is an expression, else None."""
        if line := session_magics.code_of_line(source, filename, self._flags | _AWAIT):
            code, has_value = line
            self._flags |= code.co_flags & _FUTURES
            value = self._carry_out(code)
            return value if has_value else None
        tree = session_magics.python_for(source, filename, self._flags | _AWAIT)
        last = None
        if tree.body and type(tree.body[-1]).__name__ == "Expr":
            last = builtins.compile(  # before anything runs, so that syntax errors are found first
                _ast.Expression(tree.body.pop().value), filename, "eval", self._flags | _AWAIT, dont_inherit=True
            )
        if tree.body:
            body = compile(tree, filename, "exec", self._flags | _AWAIT, dont_inherit=True)
            self._flags |= body.co_flags & _FUTURES
            self._carry_out(body)
        return None if last is None else self._carry_out(last)

    def _carry_out(self, code):
        value = eval(code, self._namespace)
        return self._await(value) if code.co_flags & _COROUTINE else value

    def _run_nested(self, source):
        """Runs code inside a cell, for `%time`."""
        return self._execute(source, f"<cell {self._count}>")

    # ---- awaiting ----

    def _await(self, coroutine):
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException as error:
            if not task.done():  # interrupted while it waited: raise it inside the task
                self._cancel(task, error)
            raise

    def _cancel(self, task, error):
        import asyncio

        task.cancel()
        try:
            self._loop.run_until_complete(task)
        except asyncio.CancelledError as cancelled:
            error.__traceback__ = cancelled.__traceback__

    def _let_tasks_run(self):
        """Runs the event loop for tasks that cells have left, until the next cell arrives."""
        if self._loop is None or self._loop.is_closed():
            return
        import asyncio

        if not asyncio.all_tasks(self._loop):
            return
        self._loop.add_reader(self._channel.descriptor, self._loop.stop)
        try:
            self._loop.run_forever()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            self._loop.remove_reader(self._channel.descriptor)

    # ---- forks ----

    def _write_image(self):
        preloaded.use("session_image")
        from . import session_image

        session_streams.flush()
        descriptors = session_image.check(_open_descriptors() - self._descriptors, self._loop)
        about = {"count": self._count, "flags": self._flags}
        session_image.write(session_image.ImagePipe(_IMAGE_OUT), self._namespace, about, descriptors)

    def _read_image(self, reseed, keeps_files):
        from . import session_image

        with session_image.ImageReader(open(self._image, "rb", buffering=0)) as source:  # closed with it
            self._descriptors.discard(self._image)
            about = session_image.read(source, self._namespace, reseed, keeps_files)
        self._count, self._flags = about["count"], about["flags"]

    # ---- variables ----

    def _send_variables(self, request):
        found = {}
        error = self._run_guarded(lambda: self._collect(found), request["cell"])
        described = None if error is None else session_streams.describe(error)
        self._channel.send(event="variables", cell=request["cell"], names=found, error=described)

    def _collect(self, found):
        room = _MOST_CHARACTERS
        for name, value in list(self._namespace.items()):
            if not name.startswith("_") and not isinstance(value, ModuleType):
                text = _short(value)
                room -= len(name) + len(text)
                if room < 0:
                    return
                found[name] = text


def _set_aside(descriptor, place):
    """Moves the descriptor to `place`; None if it is not open."""
    try:
        os.dup2(descriptor, place, inheritable=False)
    except OSError:
        return None
    os.close(descriptor)
    return place


def _open_descriptors():
    """The open descriptors, without the one that lists them."""
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


def _short(value):
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST_VARIABLE else text[: _LONGEST_VARIABLE - 3] + "..."

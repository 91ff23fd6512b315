"""The end of a warm interpreter is the end of `python3 main.py`: what is still alive then is finalised, in that order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.bare_python import check_same_as_bare

from warmcell import ExecRequest, Language, ProcessBackend, ProcessConfig, SandboxPolicyBuilder

#: A file on standard output whose content is lost unless somebody finalises it.
LEFT_OPEN = "import os\ndef left(text):\n    file = os.fdopen(os.dup(1), 'w'); file.write(text + '\\n'); return file\n"
#: Something that says when it goes.
LOUD = "class Loud:\n    def __init__(self, name): self.name = name\n    def __del__(self): print('gone', self.name)\n"

STREAMS = {
    "tee without flush": "import sys\nclass Tee:\n    def __init__(self, inner): self.inner = inner\n    def write(self, text): return self.inner.write(text)\n    def flush(self): pass\nsys.stdout = Tee(sys.stdout)\nprint('through the tee')",
    "tee whose flush raises": "import sys\nclass Tee:\n    def __init__(self, inner): self.inner = inner\n    def write(self, text): return self.inner.write(text)\n    def flush(self): raise OSError('no flush')\nsys.stdout = Tee(sys.stdout)\nprint('through the tee')",
    "stream without flush": "import sys\nclass Odd:\n    def write(self, text): return len(text)\nprint('kept')\nsys.stdout = Odd()",
    "stream with a closed property that raises": "import sys\nclass Odd:\n    def write(self, text): return len(text)\n    def flush(self): print('flushed', file=sys.stderr)\n    @property\n    def closed(self): raise ValueError('odd')\nsys.stdout = Odd()",
    "stdout is none": "import sys\nprint('before')\nsys.stdout = None\nprint('nowhere')",
    "stdout deleted": "import sys\nprint('before')\ndel sys.stdout",
    "second wrapper": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='latin-1')\nprint('é')",
    "codecs writer": "import codecs, sys\nsys.stdout = codecs.getwriter('utf-16-le')(sys.stdout.buffer)\nsys.stdout.write('wide')",
    "reconfigured": "import sys\nsys.stdout.reconfigure(line_buffering=False, write_through=False, encoding='utf-8')\nprint('kept')",
    "only the original is written": "import sys\nsys.stdout = sys.stderr\nsys.__stdout__.write('original\\n')\nprint('to stderr')",
    "stderr with a buffer": "import io, os, sys\nsys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.dup(2), 'w')))\nprint('late', file=sys.stderr)",
    "unflushed bytes": "import sys\nsys.stdout.buffer.write(b'raw bytes\\n')",
    "detached and dropped": "import sys\nsys.stdout.detach().write(b'raw\\n')",
    "stdout closed under it": "import os\nprint('no reader')\nos.close(1)",
    "stdout closed and status": "import os, sys\nprint('no reader')\nos.close(1)\nsys.exit(3)",
    "broken pipe at exit": "import os\nr, w = os.pipe(); os.close(r); os.dup2(w, 1)\nprint('no reader')",
    "broken pipe in a tee": "import os, sys\nr, w = os.pipe(); os.close(r)\nsys.stdout = os.fdopen(w, 'w')\nprint('no reader')",
    "c stdio": "import ctypes\nctypes.CDLL(None).printf(b'from C\\n')\nprint('from Python')",
}

FILES = {
    "left open": LEFT_OPEN + "f = left('global')",
    "left open in a cycle": LEFT_OPEN + "class Node: pass\nn = Node(); n.me = n; n.file = left('cycle'); del n",
    "left open in a closure": LEFT_OPEN + "def make():\n    f = left('closure')\n    return lambda: f\nkeep = make()",
    "left open in a class": LEFT_OPEN + "class Holder: file = left('class')",
    "left open in a default": LEFT_OPEN + "def f(file=left('default')): pass",
    "left open in a raising frame": LEFT_OPEN + "def f():\n    file = left('frame')\n    1 / 0\nf()",
    "left open in a caught frame": LEFT_OPEN
    + "def f():\n    file = left('frame')\n    1 / 0\ntry: f()\nexcept ZeroDivisionError as e: keep = e",
    "left open in a coroutine": LEFT_OPEN
    + "async def f():\n    file = left('coroutine')\n    await g()\nimport types\n@types.coroutine\ndef g(): yield\nc = f(); c.send(None)",
    "left open in a generator": LEFT_OPEN + "def f():\n    file = left('generator')\n    yield\ng = f(); next(g)",
    "left open in a standard module": LEFT_OPEN + "import json\njson.extra = left('json')",
    "left open in builtins": LEFT_OPEN + "import builtins\nbuiltins.extra = left('builtins')",
    "left open in sys": LEFT_OPEN + "import sys\nsys.extra = left('sys')",
    "left open in a cache": LEFT_OPEN
    + "import functools\n@functools.lru_cache\ndef f(text): return left(text)\nf('cache')",
    "left open in an exception": LEFT_OPEN + "raise ValueError(left('argument'))",
    "left open and exit": LEFT_OPEN + "import sys\nf = left('exit')\nsys.exit(4)",
    "left open in a local thread": LEFT_OPEN + "import threading\nx = threading.local(); x.file = left('thread local')",
    "resource warning": "import warnings\nwarnings.simplefilter('always')\nf = open('/dev/null')",
    "gzip": "import gzip, os\nf = gzip.GzipFile(fileobj=os.fdopen(os.dup(2), 'wb', 0), mode='wb', mtime=0)\nf.write(b'x' * 100)",
    "zip file": "import io, os, zipfile\nclass Out(io.BytesIO):\n    def close(self):\n        print(len(self.getvalue()) > 100); super().close()\no = Out(); z = zipfile.ZipFile(o, 'w'); z.writestr('a', 'b')",
    "string io subclass": "import io\nclass S(io.StringIO):\n    def close(self):\n        print('closed', self.getvalue()); super().close()\ns = S(); s.write('text')",
    "closed file": "f = open('/dev/null'); f.close(); print('closed')",
    "temporary file": "import tempfile\nf = tempfile.NamedTemporaryFile(); f.write(b'x'); print('made')",
    "temporary directory warning": "import tempfile, warnings\nwarnings.simplefilter('always')\nd = tempfile.TemporaryDirectory(prefix='same', suffix='same'); print('made')\nimport re, sys\nwarnings.showwarning = lambda m, c, f, l, *a: print(c.__name__)",
}
if sys.version_info >= (3, 14):
    del FILES["gzip"]  # since then it fails by itself at the end of the interpreter

OBJECTS = {
    "global": LOUD + "a = Loud('a'); b = Loud('b'); _c = Loud('c')",
    "order with exit functions": LOUD + "import atexit\natexit.register(print, 'exit function')\na = Loud('a')",
    "in a cycle": LOUD + "a = Loud('a'); b = Loud('b'); a.b, b.a = b, a",
    "in a container": LOUD + "a = [Loud(1), {2: Loud(2)}, (Loud(3),)]",
    "in a class": LOUD + "class Holder: a = Loud('attribute')",
    "in a module": LOUD + "import types, sys\nm = sys.modules['mine'] = types.ModuleType('mine'); m.a = Loud('module')",
    "in sys.modules itself": LOUD + "import sys\nsys.modules['odd'] = Loud('odd')",
    "slots without anything": "class Slim:\n    __slots__ = ()\n    def __del__(self): print('slim gone')\na = Slim()",
    "int with a finaliser": "class N(int):\n    __slots__ = ()\n    def __del__(self): print('number gone')\na = N(5)",
    "inherited": LOUD + "class Louder(Loud): pass\na = Louder('louder')",
    "class itself": "class Meta(type):\n    def __del__(cls): print('class gone')\nclass A(metaclass=Meta): pass",
    "metaclass with odd hash": "class Meta(type):\n    __hash__ = None\n    def __eq__(cls, other): raise ValueError('compared')\nclass A(metaclass=Meta): pass\na = A()\nprint('fine')",
    "class with odd attributes": "class Meta(type):\n    def __getattribute__(cls, name): raise RuntimeError(name)\nclass A(metaclass=Meta): pass\na = A()\nprint('fine')",
    "uses globals": "import sys\nname = 'x'\nclass A:\n    def __del__(self): print(name, sys is None)\na = A()",
    "raises": "class A:\n    def __del__(self): raise ValueError('late')\na = A()",
    "resurrects": "class A:\n    def __del__(self):\n        global kept\n        kept = self; print('once')\na = A()",
    "makes another": LOUD + "class A:\n    def __del__(self): self.next = Loud('second'); print('first')\na = A()",
    "unraisable hook": "import sys\nsys.unraisablehook = lambda u: print('hook', u.exc_value)\nclass A:\n    def __del__(self): raise ValueError('late')\na = A()",
    "weak reference callback": "import weakref\nclass A: pass\na = A(); r = weakref.ref(a, lambda r: print('callback'))\ndel a\nb = A(); s = weakref.ref(b, lambda r: print('late'))",
    "weak reference in a class": "import weakref\nclass A: pass\nclass H: r = None\nb = A(); H.r = weakref.ref(b, lambda r: print('late'))\nimport sys; sys.holder = H",
    "weak reference with a method": "import weakref\nclass A: pass\nclass B:\n    def gone(self, ref): print('method')\nb = B(); a = A(); import sys; sys.keep = weakref.ref(a, b.gone)",
    "weak reference with a builtin": "import sys, weakref\nclass A: pass\na = A(); sys.keep = weakref.ref(a, lambda r, p=print: p('late'))\nb = A(); sys.more = weakref.ref(b, print)",
    "abstract base classes": "import abc, collections.abc\nclass A(abc.ABC): pass\n@A.register\nclass B: pass\nprint(isinstance(B(), A), isinstance([], collections.abc.Sequence))",
    "weak dictionary": "import weakref\nclass A: pass\nd = weakref.WeakValueDictionary(); a = d['a'] = A(); s = weakref.WeakSet([a]); print(len(d), len(s))",
    "weakref.finalize not at exit": "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'finalize').atexit = False\nprint('main')",
    "frozen by the program": LOUD + "import gc\na = Loud('a'); a.me = a\ngc.freeze()\nb = Loud('b')",
    "collector switched off": LOUD + "import gc\ngc.disable()\na = Loud('a'); a.me = a; del a",
    "many objects": LOUD + "a = [[i] for i in range(300_000)]\nb = Loud('b')",
    "after exception": LOUD + "a = Loud('a')\nraise ValueError('no')",
    "last exception": LOUD
    + "import sys\ndef f():\n    a = Loud('in frame')\n    raise ValueError('no')\ntry: f()\nexcept ValueError: sys.excepthook(*sys.exc_info())",
    "context variable": LOUD + "import contextvars\nv = contextvars.ContextVar('v'); v.set(Loud('context'))",
    "default of a thread local": LOUD + "import threading\nx = threading.local(); x.a = Loud('local')",
}

SUSPENDED = {
    "generator": "def g():\n    try: yield 1\n    finally: print('closed')\nx = g(); next(x)",
    "generator in with": "import contextlib\n@contextlib.contextmanager\ndef c():\n    print('in')\n    try: yield\n    finally: print('out')\nx = c(); x.__enter__()",
    "generator that ignores the end": "def g():\n    while True:\n        try: yield\n        except GeneratorExit: print('no')\nx = g(); next(x)",
    "generator in a cycle": "def g():\n    me = yield\n    try: yield\n    finally: print('closed')\nx = g(); next(x); x.send(x); del x",
    "generator not begun": "def g():\n    yield\nx = g()",
    "generator at its end": "def g():\n    yield\nx = g(); list(x); print('done')",
    "coroutine never awaited": "async def f(): pass\nc = f()\nprint('main')",
    "coroutine never awaited in a cycle": "import warnings\nasync def f(x): pass\nl = []; l.append(f(l)); del l\nprint('main')",
    "asynchronous generator": "import asyncio\nasync def g():\n    try: yield 1\n    finally: print('closed')\nasync def main():\n    global x\n    x = g(); print(await anext(x))\nasyncio.run(main())",
    "task destroyed while pending": "import asyncio\nasync def f(): await asyncio.sleep(10)\nloop = asyncio.new_event_loop()\nt = loop.create_task(f(), name='T')\nloop.run_until_complete(asyncio.sleep(0))",
    "task exception never retrieved": "import asyncio\nasync def f(): raise ValueError('lost')\nloop = asyncio.new_event_loop()\nt = loop.create_task(f(), name='T')\nloop.run_until_complete(asyncio.sleep(0.01)); loop.close()",
    "loop never closed": "import asyncio\nloop = asyncio.new_event_loop()\nloop.run_until_complete(asyncio.sleep(0))\nprint('main')",
    "open executor": "from concurrent.futures import ThreadPoolExecutor\np = ThreadPoolExecutor(1); f = p.submit(print, 'in pool')",
    "open process pool": "import multiprocessing as m\nif __name__ == '__main__':\n    p = m.Pool(1); print(p.apply(abs, (-1,)))",
    "process left running": "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.2)'])\nprint('main')",
    "process never joined": "import multiprocessing as m\nif __name__ == '__main__':\n    m.get_context('fork').Process(target=print, args=('child',)).start()",
}

EXITS = {
    "atexit exits": "import atexit, sys\natexit.register(sys.exit, 5)\nprint('main')",
    "atexit registers": "import atexit\natexit.register(lambda: (print('first'), atexit.register(print, 'second')))",
    "atexit raises twice": "import atexit\ndef f(): raise ValueError('f')\ndef g(): raise KeyError('g')\natexit.register(f); atexit.register(g); atexit.register(print, 'h')",
    "atexit closes stdout": "import atexit, sys\nprint('kept')\natexit.register(sys.stdout.close)",
    "atexit os._exit": "import atexit, os\natexit.register(os._exit, 9)\nprint('lost')",
    "atexit starts a thread": "import atexit, threading, time\natexit.register(lambda: print(threading.current_thread().name))",
    "atexit sees the module": "import atexit\nx = 'still here'\natexit.register(lambda: print(x))",
    "threading atexit": "import threading\nthreading._register_atexit(print, 'thread exit')\nprint('main')",
    "thread raises late": "import threading, time\ndef f(): time.sleep(0.05); raise ValueError('late')\nthreading.Thread(target=f, name='T').start()",
    "thread exits": "import sys, threading\nt = threading.Thread(target=lambda: sys.exit(3)); t.start(); t.join(); print('main')",
    "thread hook": "import threading\nthreading.excepthook = lambda a: print('hook', a.exc_value)\nthreading.Thread(target=lambda: 1/0).start()",
    "daemon with an open file": LEFT_OPEN
    + "import threading, time\ndef f():\n    x = left('never finalised'); time.sleep(30)\nthreading.Thread(target=f, daemon=True).start(); time.sleep(0.05)\nprint('main')",
    "daemon that prints": "import threading, time\nsaid = threading.Event()\ndef f():\n    time.sleep(0.02); print('daemon', flush=True); said.set(); time.sleep(30)\nthreading.Thread(target=f, daemon=True).start(); said.wait()\nprint('main')",
    "timer": "import threading\nthreading.Timer(0.05, print, ('timer',)).start()",
    "exit in a finaliser": "import sys\nclass A:\n    def __del__(self): sys.exit(5)\na = A()",
    "exit with an odd object": "import sys\nclass A:\n    def __str__(self): raise ValueError('str')\nsys.exit(A())",
    "exit with a tuple": "raise SystemExit(1, 2)",
    "exit with a subclass": "class E(SystemExit): pass\nraise E(6)",
    "exit code raises": "class E(SystemExit):\n    @property\n    def code(self): raise ValueError('code')\nraise E(3)",
    "exit code deleted": "class E(SystemExit):\n    code = 8\nraise E",
    "exit with nothing on stderr": "import sys\nsys.stderr = None\nsys.exit('text')",
    "exit inside except": "import sys\ntry: 1/0\nexcept ZeroDivisionError: sys.exit('because')",
    "exit in excepthook": "import sys\nsys.excepthook = lambda *a: sys.exit(7)\n1/0",
    "excepthook deleted": "import sys\ndel sys.excepthook\n1/0",
    "excepthook is none": "import sys\nsys.excepthook = None\n1/0",
    "interrupt with output": "print('before')\nraise KeyboardInterrupt",
    "interrupt and objects": LOUD + "a = Loud('a')\nraise KeyboardInterrupt",
    "interrupt subclass": "class K(KeyboardInterrupt): pass\nraise K('x')",
    "interrupt in excepthook": "import sys\ndef hook(*a): raise KeyboardInterrupt\nsys.excepthook = hook\n1/0",
    "base exception": "raise BaseException('bare')",
    "exception without traceback text": "class E(Exception):\n    def __str__(self): raise ValueError('str')\nraise E",
    "killed by itself": "import os, signal\nprint('lost')\nos.kill(os.getpid(), signal.SIGKILL)",
    "logging file handler": "import logging, os\nh = logging.StreamHandler(os.fdopen(os.dup(1), 'w')); logging.getLogger().addHandler(h); logging.error('logged')",
    "logging memory handler": "import logging, logging.handlers\nh = logging.handlers.MemoryHandler(100, target=logging.StreamHandler()); logging.getLogger().addHandler(h); logging.error('buffered')",
    "fork with objects": LOUD
    + "import os, sys\na = Loud('a')\nsys.stdout.flush()\nif os.fork() == 0: sys.exit(0)\nos.wait()",
    "fork and os._exit": LOUD + "import os\na = Loud('a')\nif os.fork() == 0: os._exit(0)\nos.wait()",
    "signal handler at exit": "import atexit, os, signal\nsignal.signal(signal.SIGUSR1, lambda *a: print('handled'))\natexit.register(lambda: os.kill(os.getpid(), signal.SIGUSR1))",
    "recursion at exit": "class A:\n    def __del__(self):\n        def f(): f()\n        try: f()\n        except RecursionError: print('deep')\na = A()",
    "trace function": "import sys\nsys.settrace(lambda *a: None)\nprint('traced')",
    "gc debug": "import gc\ngc.set_debug(gc.DEBUG_SAVEALL)\na = []; a.append(a); del a\nprint(gc.collect() > 0); gc.set_debug(0)",
}

PROGRAMS = {
    f"{kind}: {name}": code
    for kind, table in (
        ("stream", STREAMS),
        ("file", FILES),
        ("object", OBJECTS),
        ("suspended", SUSPENDED),
        ("exit", EXITS),
    )
    for name, code in table.items()
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_end_is_the_same(name: str, native: ProcessBackend, bare_python: str, tmp_path: Path) -> None:
    check_same_as_bare(PROGRAMS[name], native, bare_python, tmp_path)


def build_loud_library(path: Path) -> None:
    """A library that says something when the process ends."""
    source = '#include <unistd.h>\n__attribute__((destructor)) static void end(void) { write(1, "bye\\n", 4); }'
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", path], input=source, text=True, check=True)


@pytest.mark.needs("gcc", "user namespaces")
@pytest.mark.parametrize(("package", "printed"), [("loud", "finalized\nbye\n"), ("numpy", "")])
def test_a_preloaded_library_has_the_last_word_unless_it_is_known_to_be_silent(
    package: str, printed: str, tmp_path: Path
) -> None:
    """Freeing what a preload brought copies it, and takes longer than the run; what writes files at exit must run."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / package).mkdir()
    build_loud_library(site / package / "library.so")
    load = """
import ctypes, os, weakref
ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'library.so'))
class Held: pass
def let_go(): os.write(1, b"finalized\\n")
held = Held()
weakref.finalize(held, let_go)
"""
    (site / package / "__init__.py").write_text(load)
    config = ProcessConfig(python_path=str(tmp_path / "venv/bin/python"), preload=(package,))
    with ProcessBackend(config) as backend:
        for _ in range(3):
            result = backend.execute_blocking(ExecRequest(Language.PYTHON, "print('said')", 30))
            assert result.stdout == "said\n" + printed


@pytest.mark.needs("gcc", "user namespaces")
def test_a_library_that_the_program_brings_has_the_last_word(tmp_path: Path) -> None:
    """Where it brings none, the process ends without asking any."""
    library = tmp_path / "library.so"
    build_loud_library(library)
    with ProcessBackend(policy=SandboxPolicyBuilder().allow_read(tmp_path).build()) as backend:
        for _ in range(3):  # the last from a cell that waited
            request = ExecRequest(Language.PYTHON, f"import ctypes; ctypes.CDLL({str(library)!r})", 30)
            assert backend.execute_blocking(request).stdout == "bye\n"

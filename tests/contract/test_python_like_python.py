"""A program cannot tell a warm cell from `python3 main.py`: both are run, and what they print and return is compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.bare_python import check_same_as_bare
from tests.contract.conftest import runner

from warmcell import ProcessBackend

PROGRAMS = {
    "prints": "print('hello'); print('a', 'b', sep='-', end='!\\n')",
    "exception": "def f(x):\n    return 1 / x\n\nf(0)\n",
    "nested exceptions": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('no') from e\n",
    "exception group": "raise ExceptionGroup('many', [ValueError(1), TypeError('t')])",
    "exception with notes": "e = ValueError('x'); e.add_note('a note'); raise e",
    "syntax error": "def f(:\n    pass\n",
    "indentation error": "if True:\nprint(1)\n",
    "null in string": "print(repr('a\\0b'))",
    "encoding cookie": "# -*- coding: latin-1 -*-\nprint('ok')\n",
    "exit none": "import sys; sys.exit()",
    "exit zero": "import sys; sys.exit(0)",
    "exit number": "import sys; sys.exit(7)",
    "exit big": "import sys; sys.exit(2**70)",
    "exit negative": "import sys; sys.exit(-3)",
    "exit text": "import sys; print('out'); sys.exit('bye')",
    "exit object": "import sys; sys.exit([1, 2])",
    "exit true": "import sys; sys.exit(True)",
    "exit float": "import sys; sys.exit(1.5)",
    "raise SystemExit": "raise SystemExit(3)",
    "builtin exit": "exit(4)",
    "builtin quit": "quit('msg')",
    "os._exit": "import os; print('lost'); os._exit(5)",
    "os._exit flushed": "import os; print('kept', flush=True); os._exit(6)",
    "atexit": "import atexit\natexit.register(print, 'first')\natexit.register(print, 'second')\nprint('main')",
    "atexit raises": "import atexit\ndef f(): raise ValueError('in atexit')\natexit.register(f)\nprint('main')",
    "atexit after exit": "import atexit, sys\natexit.register(print, 'bye')\nsys.exit(2)",
    "atexit after exception": "import atexit\natexit.register(print, 'bye')\n1/0",
    "thread": "import threading\nt = threading.Thread(target=print, args=('in thread',)); t.start(); t.join(); print('end')",
    "thread outlives main": "import threading\nthreading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()\nprint('main')",
    "daemon thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(5), print('never')), daemon=True).start()\nprint('main')",
    "thread exception": "import threading\nt = threading.Thread(target=lambda: 1/0, name='T'); t.start(); t.join()",
    "thread pool": "from concurrent.futures import ThreadPoolExecutor as P\nwith P(2) as p: print(list(p.map(abs, [-1, -2])))",
    "multiprocessing": "import multiprocessing as m\nif __name__ == '__main__':\n    with m.Pool(2) as p: print(p.map(abs, [-1, 2]))",
    "multiprocessing spawn": "import multiprocessing as m\ndef f(q): q.put('from child')\nif __name__ == '__main__':\n    c = m.get_context('spawn'); q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join(); print(p.exitcode)",
    "fork": "import os\npid = os.fork()\nif pid == 0:\n    print('child'); raise SystemExit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True, text=True).stdout)",
    "asyncio": "import asyncio\nasync def main():\n    await asyncio.sleep(0); print('async')\nasyncio.run(main())",
    "asyncio exception": "import asyncio\nasync def main(): raise RuntimeError('boom')\nasyncio.run(main())",
    "input": "print(input() + input('prompt '))",
    "input at end": "input(); input(); input()",
    "stdin lines": "import sys\nfor line in sys.stdin: print(repr(line))",
    "warnings": "import warnings\nwarnings.warn('careful')\ndef f(): warnings.warn('old', DeprecationWarning)\nf()",
    "syntax warning": "print(1 is 1)\n",
    "file": "import os; print(os.path.basename(__file__), __name__, __doc__, __package__, __spec__)",
    "main module": "import sys; m = sys.modules['__main__']; print(m.__dict__ is globals(), sorted(k for k in globals() if k.startswith('__')))",
    "loader": "print(type(__loader__).__name__, __loader__.is_package('__main__'))",
    "docstring": "'''doc'''\nprint(__doc__)",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "argv": "import sys; print(len(sys.argv), sys.argv[0].endswith('main.py'))",
    "unraisable": "class A:\n    def __del__(self): raise ValueError('in del')\na = A(); del a; print('after')",
    "finaliser at exit": "class A:\n    def __del__(self): print('finalised')\na = A()\nprint('main')",
    "finaliser raises at exit": "class A:\n    def __del__(self): raise ValueError('late')\na = A()",
    "cycle at exit": "class A:\n    def __del__(self): print('cycle gone')\na = A(); a.me = a; del a",
    "weakref finalise": "import weakref\nclass A: pass\na = A(); f = weakref.finalize(a, print, 'finalize')\nprint('main')",
    "buffering order": "import sys, os\nsys.stdout.write('1'); os.write(1, b'2'); sys.stdout.flush(); sys.stderr.write('e')",
    "print to stderr": "import sys; print('e', file=sys.stderr); print('o')",
    "closed stdout": "import sys; print('x'); sys.stdout.close()",
    "detached stdout": "import sys; b = sys.stdout.detach(); b.write(b'raw\\n'); b.flush()",
    "stdout is not seekable": "import sys; print(sys.stdout.seekable(), sys.stdin.seekable(), sys.stdout.isatty(), sys.stdout.encoding, sys.stdin.encoding, sys.stderr.errors)",
    "redirected": "import contextlib, io\nf = io.StringIO()\nwith contextlib.redirect_stdout(f): print('x')\nprint(repr(f.getvalue()))",
    "excepthook": "import sys\nsys.excepthook = lambda t, v, tb: print('hook', t.__name__, v)\n1/0",
    "excepthook raises": "import sys\ndef hook(*a): raise TypeError('hook broke')\nsys.excepthook = hook\n1/0",
    "displayhook": "import sys; sys.displayhook(42)",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "keyboard interrupt caught": "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(1)\nexcept KeyboardInterrupt: print('caught')",
    "signal handler": "import os, signal\nsignal.signal(signal.SIGUSR1, lambda n, f: print('usr1'))\nos.kill(os.getpid(), signal.SIGUSR1)",
    "signal dispositions": "import signal\nprint([(s.name, signal.getsignal(s)) for s in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGXFSZ, signal.SIGHUP)])",
    "blocked signals": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "wakeup fd": "import signal; print(signal.set_wakeup_fd(-1))",
    "sigterm": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os; os.abort()",
    "recursion": "def f(): f()\ntry: f()\nexcept RecursionError as e: print(str(e)[:40])",
    "recursion limit": "import sys; print(sys.getrecursionlimit())",
    "import module": "import json, re, dataclasses; print(json.dumps({'a': 1}), re.sub('a', 'b', 'aaa'))",
    "missing module": "import no_such_module_here",
    "from missing": "from os import no_such_name",
    "pickle class in main": "import pickle\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x, A.__module__)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P: x: int = 1\nprint(P())",
    "inspect source": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))",
    "open own file": "print(open(__file__).read()[:12])",
    "traceback module": "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()",
    "logging": "import logging; logging.warning('w'); logging.basicConfig(); logging.error('e')",
    "tempfile": "import tempfile, os\nwith tempfile.TemporaryDirectory() as d: print(os.path.isdir(d))",
    "temporary directory left": "import tempfile\nd = tempfile.TemporaryDirectory(); print('made')",
    "unclosed file": "f = open(__file__)\nprint('x')",
    "getpass": "import getpass, os; print(bool(getpass.getuser()), os.path.isdir(os.path.expanduser('~')))",
    "locale": "import locale, sys; print(locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.flags.utf8_mode)",
    "gc": "import gc; print(gc.isenabled(), gc.get_threshold())",
    "gc freeze count is private": "import gc; print(gc.collect() >= 0)",
    "threading main": "import threading; print(threading.current_thread().name, threading.main_thread() is threading.current_thread(), threading.active_count())",
    "contextvars": "import contextvars; v = contextvars.ContextVar('v', default=1); print(v.get())",
    "decimal": "import decimal; print(decimal.getcontext().prec)",
    "random differs": "import random; print(0 <= random.random() < 1)",
    "help builtin": "print(repr(help)[:12], repr(copyright)[:9])",
    "globals are clean": "print([n for n in dir() if not n.startswith('__')])",
    "sys modules have no strangers": "import sys; print([n for n in sys.modules if 'cage' in n or 'warmcell' in n])",
    "trace and profile": "import sys; print(sys.gettrace(), sys.getprofile())",
    "frozen set order": "print(sorted({'a', 'b'}))",
    "walrus and match": "match (n := 3):\n    case 3: print('three', n)",
    "division by zero in finally": "try:\n    print('t')\nfinally:\n    1/0",
    "generator exit": "def g():\n    try: yield 1\n    finally: print('closed')\nx = g(); next(x)",
    "print flush broken": "import sys; sys.stdout.flush(); print('ok')",
    "broken pipe": "import os, sys\nos.close(1)\nprint('no reader')",
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_same_as_bare(name: str, native: ProcessBackend, bare_python: str, tmp_path: Path) -> None:
    check_same_as_bare(PROGRAMS[name], native, bare_python, tmp_path)


def test_hash_and_random_state_differ_between_runs(native: ProcessBackend) -> None:
    run = runner(native)
    seen = {
        run("import random, uuid, secrets; print(random.random(), uuid.uuid4(), secrets.token_hex(8))").stdout
        for _ in range(6)
    }
    assert len(seen) == 6


def test_python_variables_reach_an_interpreter_of_their_own(native: ProcessBackend) -> None:
    run = runner(native)
    assert (
        run("print(hash('a'))", env={"PYTHONHASHSEED": "0"}).stdout
        == run("print(hash('a'))", env={"PYTHONHASHSEED": "0"}).stdout
    )
    assert run("import sys; print(sys.flags.dont_write_bytecode)", env={"PYTHONDONTWRITEBYTECODE": "1"}).stdout == "1\n"


def test_the_working_directory_is_importable(native: ProcessBackend) -> None:
    code = "open('mod.py', 'w').write('x = 41')\nimport mod\nprint(mod.x + 1)"
    assert runner(native)(code).stdout == "42\n"

"""Interpreters as hosts have them: one that needs a search path for libraries, one whose site prints, and preloads."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from shutil import which

import pytest
from tests.helpers import require

from warmcell import BackendUnavailable, ExecRequest, ProcessBackend, ProcessConfig, Sandbox

pytestmark = pytest.mark.needs("linux", "user namespaces")

_PROGRAM = (
    "#include <Python.h>\nint needed(void);\nint main(int n, char **w) { return needed() + Py_BytesMain(n, w); }\n"
)
_RUN = """
import os, warmcell
print(warmcell.run("import os, sys; print(42, 'needed' in repr(os.environ), 'needed' in open('/proc/self/environ').read())").stdout)
"""


def _compile(*words: str) -> None:
    subprocess.run(["cc", *words], check=True, capture_output=True, timeout=60)


@pytest.fixture
def needy(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """An interpreter that does not start without LD_LIBRARY_PATH, as modules of HPC clusters have them."""
    include, library = sysconfig.get_path("include"), sysconfig.get_config_var("LDLIBRARY") or ""
    has_parts = which("cc") is not None and Path(include, "Python.h").exists() and ".so" in library
    require(has_parts, "there is no compiler here, or no shared libpython")
    needed = tmp_path / "needed"
    needed.mkdir()
    (tmp_path / "needed.c").write_text("int needed(void) { return 0; }\n")
    (tmp_path / "program.c").write_text(_PROGRAM)
    interpreter = tmp_path / "bin" / f"python3.{sys.version_info[1]}"
    interpreter.parent.mkdir()
    _compile("-shared", "-o", f"{needed}/libneeded.so", f"{tmp_path}/needed.c")
    name = f"python3.{sys.version_info[1]}"
    _compile(f"-I{include}", "-o", str(interpreter), f"{tmp_path}/program.c", f"-L{needed}", "-lneeded", f"-l{name}")
    paths = os.pathsep.join(path for path in sys.path if path)
    return interpreter, {"LD_LIBRARY_PATH": str(needed), "PYTHONPATH": paths, "PYTHONHOME": sys.base_prefix}


def test_an_interpreter_that_needs_a_library_path_gets_it(needy: tuple[Path, dict[str, str]]) -> None:
    """And guests do not: it is the host's."""
    interpreter, environment = needy
    assert subprocess.run([interpreter, "-c", ""], capture_output=True, check=False).returncode == 127
    command = [interpreter, "-c", _RUN]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "42 False False\n\n", done.stderr


@pytest.fixture
def talkative(tmp_path: Path) -> Path:
    """An environment with a .pth file that prints, as editable installs and coverage tools leave them."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (site / "talk.pth").write_text("import sys; print('chatter'); sys.stdout.write('{}')\n")
    (site / "silent.py").write_text("print('chatter')\n")
    (site / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    (site / "outer.py").write_text("import json, threads\n")
    return tmp_path / "venv/bin/python"


def _run(code: str, **config: object) -> str:
    with ProcessBackend(ProcessConfig(**config)) as backend:  # type: ignore[arg-type]
        result = backend.execute_blocking(ExecRequest("python", code, 60))
    return result.stdout + result.stderr


def test_what_a_site_prints_is_not_in_the_output(talkative: Path) -> None:
    assert _run("print(42)", python_path=talkative) == "42\n"
    assert _run("print(42)", python_path=talkative, preload=("silent",)) == "42\n"


def test_a_preload_that_starts_a_thread_is_named(talkative: Path) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        _run("print(42)", python_path=talkative, preload=("json", "outer"))
    assert "threads starts 1 thread(s) when it is imported" in caught.value.message
    assert "leave it out of ProcessConfig.preload" in (caught.value.hint or "")


def test_pyarrow_is_asked_to_start_no_thread(talkative: Path) -> None:
    """jemalloc in pyarrow has a background thread unless this variable says otherwise; guests do not find it."""
    site = next((talkative.parents[1] / "lib").glob("python3*/site-packages"))
    (site / "arrow.py").write_text("import os\nsetting = os.environ.get('JE_ARROW_MALLOC_CONF')\n")
    code = "import arrow, os; print(arrow.setting, 'JE_ARROW_MALLOC_CONF' in os.environ)"
    assert _run(code, python_path=talkative, preload=("arrow",)) == "background_thread:false False\n"


def test_a_preloaded_library_is_used_once_before_guests_are_forked(talkative: Path) -> None:
    """pandas and torch load more when something is first shown. A library that fails then is still there."""
    site = next((talkative.parents[1] / "lib").glob("python3*/site-packages"))
    frame = "class DataFrame:\n    def __init__(self, data): pass\n    def __repr__(self): uses.append(1); return ''\n"
    (site / "pandas.py").write_text(f"uses = []\n{frame}")
    (site / "torch.py").write_text("def ones(*shape): raise OSError\n")  # as of another version
    assert _run("import pandas; print(pandas.uses)", python_path=talkative, preload=("pandas", "torch")) == "[1]\n"


def test_guests_do_not_share_the_random_numbers_of_a_preloaded_library(talkative: Path) -> None:
    site = next((talkative.parents[1] / "lib").glob("python3*/site-packages"))
    (site / "torch.py").write_text("import random\ndefault_generator = random.Random(1)\n")
    config = ProcessConfig(python_path=talkative, preload=("torch",))
    request = ExecRequest("python", "import torch; print(torch.default_generator.random())", 60)
    with ProcessBackend(config) as backend:
        assert len({backend.execute_blocking(request).stdout for _ in range(3)}) == 3
    with Sandbox(config=config, live=True) as sandbox, sandbox.session() as one, sandbox.session() as other:
        assert one.run(request.code).stdout != other.run(request.code).stdout

"""Coverage looks into cages by changing how their processes are started; here is what it relies on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import share_no_zygotes
from tests.inside import plugin

from warmcell import ExecRequest, Language, ProcessBackend, ProcessConfig
from warmcell.pool import manager_process

needs_monitoring = pytest.mark.skipif(sys.version_info < (3, 13), reason="sys.monitoring without a descriptor: 3.13")


@pytest.mark.needs("user namespaces")
def test_zygotes_begin_with_the_boot_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    share_no_zygotes(monkeypatch)
    monkeypatch.setattr(manager_process, "BOOT", f"open({str(mark)!r}, 'w').close()\n{manager_process.BOOT}")
    with ProcessBackend(ProcessConfig(pool_size=0, pool_min=0)) as backend:
        assert backend.execute_blocking(ExecRequest(Language.PYTHON, "print(6 * 7)", 20)).stdout == "42\n"
    assert mark.exists()


#: In a process of its own: workers that wait for a run from other tests were not started in the counted way.
COUNTED = """
import sys
from pathlib import Path
from tests.inside import plugin
from warmcell import ExecRequest, Language, ProcessBackend, WasmBackend
directory = Path(sys.argv[1])
plugin.lay_out(directory)
plugin.count_zygotes(directory)
with ProcessBackend() as backend:
    assert backend.execute_blocking(ExecRequest(Language.PYTHON, "print(6 * 7)", 20)).stdout == "42\\n"
with WasmBackend() as backend:
    assert backend.execute_blocking(ExecRequest(Language.WASM, '(module (func (export "_start")))', 20)).exit_code == 0
print(*(path.relative_to(plugin.PACKAGE) for path, lines in plugin.count_lines(directory).items() if lines))
"""


@needs_monitoring
@pytest.mark.needs("user namespaces")
def test_lines_of_zygotes_and_workers_are_counted(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNTED, str(tmp_path)]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    ran = ended.stdout.split()
    assert {"guest/python/worker.py", "guest/python/interpreter_exit.py", "guest/wasm/worker.py"} <= {*ran}, ended
    assert [name for name in ran if name.startswith("cage/guest_entry/")]


@needs_monitoring
def test_every_line_that_runs_is_counted_once_for_all(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n\ndef used():\n    return 1\n\ndef unused():\n    return 2\n\nprint(used(), sys.argv[1])\n"
    )
    (tmp_path / "table").write_text(f"5 {script}\n")
    (tmp_path / "hits").write_bytes(bytes(20))
    command = [sys.executable, "-I", "-S", str(plugin.COLLECTOR), str(tmp_path), str(script), "given"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1 given\n"
    hits = (tmp_path / "hits").read_bytes()
    assert [line for line in range(1, 12) if hits[5 + line]] == [1, 3, 4, 6, 9]

"""The same program in a bare Python, for comparison."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.contract.conftest import runner

from warmcell import ProcessBackend

INPUT = "line one\nline two\n"


def normalise(output: bytes) -> str:
    text = output.decode("utf-8", "backslashreplace")
    text = re.sub(r"/[\w./-]*/main\.py", "main.py", text)
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def check_same_as_bare(code: str, native: ProcessBackend, bare_python: str, tmp_path: Path) -> None:
    """Runs the program both ways. The interpreter is the same one, so nothing depends on its version."""
    script = tmp_path / "main.py"
    script.write_text(code)
    environment = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    bare = subprocess.run(
        [bare_python, str(script)],
        input=INPUT.encode(),
        capture_output=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    ours = runner(native)(code, stdin=INPUT)
    expected = bare.returncode if bare.returncode >= 0 else 128 - bare.returncode
    assert normalise(ours.stdout_bytes) == normalise(bare.stdout)
    assert normalise(ours.stderr_bytes) == normalise(bare.stderr)
    assert ours.exit_code == expected

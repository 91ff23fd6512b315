"""A Python that was built without bz2 and lzma: files and other archives work, and theirs are refused by name."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.modules.update(bz2=None, lzma=None)
import json
from pathlib import Path
from warmcell import SandboxError
from warmcell.images.build import builder
from warmcell.workspace.workspace import Workspace
workspace, refusals = Workspace(sys.argv[1]), []
workspace.upload(b"content", "note")
for name in sys.argv[2:]:
    try:
        workspace.upload(Path(name), extract=True)
    except SandboxError as error:
        refusals.append([error.fault, error.message])
workspace.upload(workspace.download(), "copy", extract=True)
print(json.dumps(refusals))
"""


def test_archives_that_this_python_cannot_read_are_refused_by_name(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    archives = [tmp_path / "a.tar.bz2", tmp_path / "a.tar.xz"]
    for path, compress in zip(archives, (bz2.compress, lzma.compress), strict=True):
        path.write_bytes(compress(bytes(1024)))
    command = [sys.executable, "-c", PROGRAM, str(work), *map(str, archives)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    needed = "the archive needs {}, which this Python was built without"
    assert json.loads(done.stdout) == [["host", needed.format(name)] for name in ("bz2", "lzma")]
    assert sorted(os.listdir(work)) == ["copy", "note"] and os.listdir(work / "copy") == ["note"]

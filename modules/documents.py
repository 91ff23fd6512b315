"""Writes what a wheel contains besides its sources: `python3 modules/documents.py DIRECTORY`. See `hatch_build.py`."""

from __future__ import annotations

import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
sys.path.insert(0, str(SOURCES))

from warmcell.cage import bundle  # noqa: E402
from warmcell.interfaces.cli import completion, manual  # noqa: E402

#: What `warmcell run` and `warmcell sh` load is in these, apart from modules that run in guests and in WebAssembly.
LOADED = "backends cage core enforcers interfaces languages lifetime policy pool runner toolbox workspace".split()
NOT_LOADED = """
    backends/fake backends/many backends/process/live backends/ray backends/supervisors enforcers/appcontainer
    enforcers/bubblewrap enforcers/gpus enforcers/seatbelt interfaces/client interfaces/docker
    interfaces/jupyter
    interfaces/mcp interfaces/recording interfaces/seats interfaces/serve interfaces/tool toolbox/python_
    workspace/archive workspace/diff workspace/file_watch workspace/files workspace/patch workspace/transfer
    workspace/workspace interfaces/cli/completion
    interfaces/cli/doctor interfaces/cli/eval interfaces/cli/image interfaces/cli/interactive
    interfaces/cli/judge interfaces/cli/jupyter interfaces/cli/manual interfaces/cli/mcp interfaces/cli/replay
    interfaces/cli/serve interfaces/cli/top interfaces/cli/workspace
""".split()


def not_loaded(package: Path) -> tuple[str, ...]:
    rooms = (path.name for path in sorted(package.iterdir()) if path.is_dir() and path.name not in LOADED)
    return (*(f"{name}/" for name in rooms), *NOT_LOADED)


def write_documents(directory: Path) -> None:
    package = SOURCES / "warmcell"
    bundle.write(str(directory / "bundle.bin"), str(package), not_loaded(package))
    (directory / "man.1").write_text(manual.troff(manual.pages()))
    known = completion.commands(for_any_host=True)
    for shell, write in completion.SHELLS.items():
        (directory / f"{shell}.txt").write_text(write(known))


if __name__ == "__main__":
    write_documents(Path(sys.argv[1]))

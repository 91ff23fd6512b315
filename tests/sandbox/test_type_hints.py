"""Type hints of the blocking, asynchronous and remote sandboxes, as mypy --strict sees them in a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = """
from warmcell import (
    AsyncClient, AsyncProcess, AsyncSandbox, AsyncSession, CellResult, Client, DirEntry, ExecResult, FileEvent, Limits,
    Process, Sandbox, Session,
)

"""
BLOCKING = """
def use() -> None:
    with {make} as sandbox:
        result: ExecResult = sandbox.exec("ls", ["-l"], cwd="d", timeout=5, on_stdout=print)
        text: str = sandbox.read_text("f", encoding="utf-8")
        entries: list[DirEntry] = sandbox.list_dir(max_entries=5)
        process: Process = sandbox.spawn(["sleep", "1"], env={{"A": "b"}}, stdin=False)
        ended: ExecResult = process.wait(5)
        session: Session = sandbox.session("python", cwd="d")
        cell: CellResult = session.run("1", timeout=5, on_input=lambda prompt: prompt)
        with sandbox.session() as opened, sandbox.expose(80, host_port=0) as port, sandbox.watch(recursive=True) as events:
            forked: str = opened.fork().sandbox.sh("true").stdout + port.url
            seen: list[FileEvent] = list(events)
        {own}
        sandbox.fork().close()
"""
ASYNCHRONOUS = """
async def use() -> None:
    async with {make} as sandbox:
        result: ExecResult = await sandbox.exec("ls", ["-l"], cwd="d", timeout=5, on_stdout=print)
        text: str = await sandbox.read_text("f", encoding="utf-8")
        entries: list[DirEntry] = await sandbox.list_dir(max_entries=5)
        process: AsyncProcess = await sandbox.spawn(["sleep", "1"], env={{"A": "b"}}, stdin=False)
        ended: ExecResult = await process.wait(5)
        session: AsyncSession = await sandbox.session("python", cwd="d")
        cell: CellResult = await session.run("1", timeout=5, on_input=lambda prompt: prompt)
        async with sandbox.session() as opened, await sandbox.expose(80, host_port=0) as port, sandbox.watch() as events:
            forked: str = (await (await opened.fork()).sandbox.sh("true")).stdout + port.url
            seen: list[FileEvent] = [event async for event in events]
        {own}
        await (await sandbox.fork()).aclose()
"""
#: Each face: how it is made, and what only it has.
FACES = {
    "blocking": (BLOCKING, 'Sandbox("dir", timeout=5, limits=Limits(processes=3))', "own: str = sandbox.fork().work_dir"),
    "asynchronous": (
        ASYNCHRONOUS, 'AsyncSandbox("dir", timeout=5)', "own: str = (await opened.fork()).sandbox.work_dir"
    ),
    "remote": (BLOCKING, 'Client("http://h").sandbox(timeout=5, live=True)', "sandbox.destroy()"),
    "remote asynchronous": (ASYNCHRONOUS, 'await AsyncClient("http://h").sandbox(timeout=5)', "await sandbox.destroy()"),
}  # fmt: skip
WRONG = """
Sandbox(timeout="5")
AsyncSandbox(workdir="dir")
Client("http://h").sandbox(lifetime="x")
Sandbox().exec(1)
Sandbox().read_text("f", encoding=8)
Sandbox().spawn("x", stdin=b"")
Sandbox().session().run("1", timeout="5")
Client("http://h").sandbox().write_file("f")
Sandbox().tools(max_text="x")
Sandbox().exec_js("1", cwd="d")
"""


def check(tmp_path: Path, source: str) -> list[str]:
    file = tmp_path / "user.py"
    file.write_text(HEADER + source)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", str(file)]
    command.append(f"--cache-dir={ROOT / '.mypy_cache' / 'type-hints'}")
    ended = subprocess.run(command, cwd=tmp_path, env={"MYPYPATH": str(ROOT / "src")}, capture_output=True, text=True)
    assert not ended.stderr, ended.stderr
    return [line for line in ended.stdout.splitlines() if line.startswith("user.py") and ": error:" in line]


def test_every_face_has_full_hints(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    sources = [face.format(make=make, own=own) for face, make, own in FACES.values()]
    numbered = (source.replace("def use", f"def use_{number}") for number, source in enumerate(sources))
    assert check(tmp_path, "\n".join(numbered)) == []


def test_wrong_arguments_are_found(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    lines = {int(line.split(":")[1]) for line in check(tmp_path, WRONG)}
    first = (HEADER + WRONG).splitlines().index('Sandbox(timeout="5")') + 1
    assert lines == set(range(first, first + len(WRONG.strip().splitlines())))

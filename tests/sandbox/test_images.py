"""Sandboxes whose root is an image: single runs, live cages, and what is refused."""

from __future__ import annotations

import ast
import shutil
import socket
from pathlib import Path

import pytest
from tests.helpers import until
from tests.image_roots import make_busybox, shared_debian_like, shared_place

import warmcell.guest
from warmcell import ExecRequest, ExecutionTimeout, ImageNotFound, InvalidRequest, ProcessBackend, PtySize, Sandbox
from warmcell.backends.process.launch import MAX_SENT_BYTES
from warmcell.backends.process.live_start import MODULES_OF_AGENT
from warmcell.cage.wire import GuestJob
from warmcell.core.records import replace
from warmcell.images import Image, ImageStore
from warmcell.lifetime.run import Run
from warmcell.runner.cell import Cell, CellLost


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    directory = tmp_path_factory.mktemp("images")
    debian = shared_debian_like(shared_place(tmp_path_factory))
    return {"debian": debian, "busybox": make_busybox(directory / "busybox")}


@pytest.mark.parametrize(
    ("name", "user", "uid"), [("debian", None, 1000), ("debian", "root", 0), ("busybox", None, 1000)]
)
def test_runs_see_the_image_and_the_work_directory(
    images: dict[str, Image], name: str, user: str | None, uid: int
) -> None:
    with Sandbox(image=images[name], user=user) as sandbox:
        sandbox.write_file("note.txt", "hello")
        assert sandbox.exec("cat", ["note.txt"]).stdout == "hello"
        assert sandbox.sh("pwd; id -u; echo x > /etc/own").stdout == f"/work\n{uid}\n"
        assert sandbox.sh("cat /etc/own 2>/dev/null; echo made > made.txt").stdout == ""
        assert sandbox.read_file("made.txt") == b"made\n"


def test_python_is_the_images_own(images: dict[str, Image]) -> None:
    with Sandbox(image=images["debian"]) as sandbox:
        code = "import os, sys; print(os.path.exists('/etc/os-release'), sys.executable, os.getcwd())"
        assert sandbox.run(code).stdout == "True /usr/bin/python3 /work\n"


@pytest.mark.parametrize("size", [1, MAX_SENT_BYTES + 1], ids=["sent with the job", "mounted"])
def test_a_program_with_files_starts_beside_them(images: dict[str, Image], size: int) -> None:
    """Also if programs of the image start elsewhere."""
    image = replace(images["debian"], config=replace(images["debian"].config, workdir="/srv/app"))
    files = {"a.txt": "x" * size}
    with ProcessBackend(image=image) as backend:
        for language, code in (
            ("command", "pwd; test ! -s a.txt || echo beside"),
            ("python", "import os; print(os.getcwd())\nif os.path.exists('a.txt'): print('beside')"),
        ):
            alone = backend.execute_blocking(ExecRequest(language, code, 60))
            assert alone.stdout == "/srv/app\n", alone
            result = backend.execute_blocking(ExecRequest(language, code, 60, files=files))
            assert result.stdout == "/work\nbeside\n", result


@pytest.mark.parametrize(("name", "user"), [("debian", "root"), ("busybox", None)])
def test_a_live_cage_keeps_its_root(images: dict[str, Image], name: str, user: str | None) -> None:
    """Busybox has no Python: the agent needs nothing of the image."""
    with Sandbox(image=images[name], user=user, live=True) as sandbox:
        assert sandbox.sh("echo kept > /etc/own").ok
        assert sandbox.sh("cat /etc/own").stdout == "kept\n"
        process = sandbox.spawn("read line; echo got $line")
        process.write("word\n")
        assert process.wait(20).stdout == "got word\n"
        assert "/dev/pts/" in sandbox.spawn("ls -l /proc/self/fd/0", pty=PtySize(80, 24)).wait(20).stdout
        assert sandbox.available_tools()


@pytest.mark.parametrize("name", ["debian", "busybox"])
def test_watches_and_terminals_need_nothing_of_the_image(images: dict[str, Image], name: str) -> None:
    with Sandbox(image=images[name], live=True) as sandbox:
        with sandbox.watch() as watch:
            assert sandbox.sh("echo x > made.txt").ok
            assert next(iter(watch)).path == "made.txt"
        terminal = sandbox.spawn("read line; echo got $line; exit 5", pty=PtySize(80, 24))
        terminal.write("word\n")
        ended = terminal.wait(60)
        assert ended.exit_code == 5 and "got word" in ended.stdout


def test_a_server_of_the_image_is_reached_through_its_port(images: dict[str, Image]) -> None:
    code = """
import socket
with socket.create_server(("127.0.0.1", 8000)) as server:
    print("ready", flush=True)
    server.accept()[0].sendall(open("/etc/os-release", "rb").read())
"""
    with Sandbox(image=images["debian"], live=True) as sandbox:
        server = sandbox.spawn(["python3", "-c", code])
        assert next(server.output()).data == b"ready\n"
        with sandbox.expose(8000) as port, socket.create_connection(("127.0.0.1", port.port)) as client:
            client.settimeout(60)
            assert client.recv(100) == b'NAME="Cell Linux"\n'
        assert server.wait(60).exit_code == 0


def test_a_branch_has_the_work_directory_and_a_root_of_its_own(images: dict[str, Image]) -> None:
    with Sandbox(image=images["debian"], user="root", live=True) as sandbox:
        sandbox.write_file("note", "first")
        assert sandbox.sh("echo own > /etc/own").ok
        kept = sandbox.snapshot()
        with sandbox.fork() as branch:
            assert branch.sh("cat note; id -u; cat /etc/own 2>/dev/null").stdout == "first0\n"
        sandbox.write_file("note", "second")
        sandbox.restore(kept)
        assert sandbox.sh("cat note /etc/own").stdout == "firstown\n"


def test_a_live_python_program_runs_in_the_image(images: dict[str, Image]) -> None:
    with Sandbox(image=images["debian"], live=True) as sandbox:
        assert sandbox.run("import json, subprocess; print(json.dumps([6 * 7]))").stdout == "[42]\n"


def test_a_python_session_is_the_images_own(images: dict[str, Image]) -> None:
    with Sandbox(image=images["debian"], user="root", live=True, forkable=True) as sandbox:
        session = sandbox.session("python", env={"WORD": "given"})
        assert session.run("import os, sys; x = 40; sys.executable").value == "'/usr/bin/python3'"
        assert session.run("x + 2").value == "42"
        assert session.run("os.environ['WORD'], os.getuid(), os.getcwd()").value == "('given', 0, '/work')"
        assert session.run("open('/marker', 'w').write('kept'); print('out')").stdout == "out\n"
        assert session.run("input()", on_input=lambda prompt: "typed").value == "'typed'"
        assert session.run("1 / 0").error.name == "ZeroDivisionError"  # type: ignore[union-attr]
        assert session.variables()["x"] == "40"
        with pytest.raises(ExecutionTimeout):
            session.run("while True: pass", timeout=0.5)
        assert session.run("x").value == "40"
        assert sandbox.sh("cat /marker").stdout == "kept"
        sandbox.write_file("helper.py", "word = 'imported'")
        assert session.run("import helper; helper.word").value == "'imported'"
        session.restart()
        assert session.run("'x' in globals()").value == "False"
        with pytest.raises(InvalidRequest, match="cannot be forked"):
            session.fork()


def test_a_shell_session_is_the_images_own(images: dict[str, Image]) -> None:
    with Sandbox(image=images["debian"]) as sandbox:
        session = sandbox.session("command")
        assert session.run("word=kept; cd /etc; cat os-release").stdout == 'NAME="Cell Linux"\n'
        assert session.run("echo $word; pwd; exit 3").value == "3"
        assert session.run("echo $word").stdout == "kept\n"
        with pytest.raises(InvalidRequest, match="javascript sessions do not run in this image"):
            sandbox.session("javascript")


def test_an_image_without_programs_has_no_sessions(images: dict[str, Image]) -> None:
    with Sandbox(image=images["busybox"]) as sandbox:
        for language in ("python", "command"):
            with pytest.raises(InvalidRequest, match=f"{language} sessions do not run in this image"):
                sandbox.session(language)


def test_the_image_of_a_backend_is_the_sandboxes(images: dict[str, Image]) -> None:
    with ProcessBackend(image=images["debian"]) as backend, Sandbox(backend=backend) as sandbox:
        assert sandbox.sh("cat /etc/os-release").stdout == 'NAME="Cell Linux"\n'


def test_what_does_not_fit_an_image_is_refused(images: dict[str, Image], tmp_path: Path) -> None:
    with Sandbox(image=images["busybox"]) as sandbox, pytest.raises(InvalidRequest, match="image"):
        sandbox.install("six")
    with pytest.raises(InvalidRequest, match="image"):
        Sandbox(user="root")
    with pytest.raises(InvalidRequest, match="process backend"):
        Sandbox(image=images["busybox"], backend="wasm")
    with pytest.raises(InvalidRequest, match="user"):
        Sandbox(image=images["debian"], user="stranger")
    with pytest.raises(ImageNotFound):
        Sandbox(image="no-such-image:1")


def test_the_agent_imports_only_what_its_zygote_has() -> None:
    """In an image the files of the standard library are another Python's, or missing."""
    folder = Path(warmcell.guest.__path__[0]) / "live"
    imported = set()
    workers = ("container_request", "session_channel", "shell_session")
    for name in ("agent", "frames", "relays", "starting", "trees", *workers):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module not in ("__future__", "typing"):
                imported.add(str(node.module))
    assert imported - {"__future__"} <= set(MODULES_OF_AGENT)


_SCRIPT = """
import atexit, os, sys
atexit.register(print, "at exit")
class Last:
    def __del__(self): print("freed")
kept = Last()
print(__name__, __file__, sys.argv, sys.path[0], os.environ.get("WORD"), sorted(os.listdir("/code")), sys.stdin.read())
print(sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)))
print([name for name in ("collections", "json", "re", "types") if name in sys.modules])
def fail(): raise ValueError("own words")
fail()
"""


def test_a_waiting_python_of_the_image_is_like_a_new_one(images: dict[str, Image]) -> None:
    """The first request makes a cell, later ones find one. PYTHON* variables need an interpreter of their own."""
    request = ExecRequest("python", _SCRIPT, 30, stdin="typed", args=("a", "b"), env={"WORD": "given"})
    with ProcessBackend(image=images["debian"]) as backend:
        new = backend.execute_blocking(replace(request, env={"WORD": "given", "PYTHONHASHSEED": "0"}))
        backend.execute_blocking(request)
        until(lambda: backend.ready_cells > 0)
        before = backend.ready_cells
        waited = backend.execute_blocking(request)
        assert waited.exit_code == new.exit_code == 1
        assert "['/code/main.py', 'a', 'b'] /work given ['main.py'] typed" in waited.stdout
        assert waited.stdout.endswith("at exit\nfreed\n")
        assert waited.stdout == new.stdout
        assert waited.stderr == new.stderr
        assert "own words" in waited.stderr
        assert "warmcell" not in waited.stderr
        assert before > 0


@pytest.mark.parametrize("is_late", [False, True])
def test_a_python_that_cannot_wait_is_started_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """An image's python3 may be anything: what it says is the result."""
    busybox = make_busybox(tmp_path)
    root = Path(busybox.layer_paths[0])
    odd = tmp_path / "odd"
    shutil.copytree(root, odd, symlinks=True)
    (odd / "bin/python3").write_text('#!/bin/sh\necho "not $0"\nexit 7\n')
    (odd / "bin/python3").chmod(0o755)
    image = ImageStore(tmp_path / "odd-store").import_(odd, "odd:1")
    send_job, lost = Cell.send_job, [is_late] * 3

    def send(cell: Cell, job: GuestJob, run: Run | None = None) -> None:
        if job.mode != "prelude" and lost and lost.pop():  # on a busy host it has ended before its job is sent
            raise CellLost("it has ended")
        send_job(cell, job, run)

    monkeypatch.setattr(Cell, "send_job", send)
    with ProcessBackend(image=image) as backend:
        for _ in range(3):
            result = backend.execute_blocking(ExecRequest("python", "print(1)", 30))
            assert (result.exit_code, result.stdout) == (7, "not /bin/python3\n")

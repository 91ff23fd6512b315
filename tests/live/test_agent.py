"""The agent by itself, without a cage around it."""

from __future__ import annotations

import errno
import importlib.util
import marshal
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import open_descriptors

import warmcell.guest
from warmcell import Sandbox
from warmcell.backends.process import live_start

pytestmark = pytest.mark.needs("linux")

LIVE = os.path.join(warmcell.guest.__path__[0], "live")
_AGENT = f"""
import os, resource, socket, sys
from types import ModuleType
package = ModuleType("warmcell_live")
package.__path__ = [{LIVE!r}]
sys.modules["warmcell_live"] = package
from warmcell_live import agent, starting
control = socket.socket(fileno=starting.out_of_the_way(int(sys.argv[1])))
"""
#: An agent that has the end of a program to tell in the very turn in which it forks a worker.
_SCRIPT = """
probe = sys.modules["warmcell_live.probe"] = ModuleType("warmcell_live.probe")
probe.main = lambda: os.write(3, b"alive")
serving = agent.Agent(control)
serving._ended.append((agent.Started("mark"), 99, 0, resource.getrusage(resource.RUSAGE_SELF)))
serving.serve()()
os._exit(0)
"""


def test_a_worker_does_nothing_of_what_the_agent_was_about_to_do() -> None:
    """It would find the agent's sockets closed, take that for the end of the host, and be gone before its first cell."""
    from warmcell.guest.live.frames import encode

    ours, theirs = socket.socketpair()
    hears, says = socket.socketpair()
    with ours, theirs, hears, says:
        request = {"id": 1, "op": "start", "mark": "1", "worker": "probe", "cwd": "/", "env": {}, "descriptors": 4}
        null = os.open(os.devnull, os.O_RDWR)
        socket.send_fds(ours, [encode(request)], [null, null, null, says.fileno()])
        says.close()
        os.close(null)
        with subprocess.Popen(
            [sys.executable, "-c", _AGENT + _SCRIPT, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        ) as process:
            theirs.close()
            hears.settimeout(30)
            try:
                assert hears.recv(16) == b"alive"
            finally:
                process.kill()


def test_the_process_that_has_the_pid_of_an_ended_program_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process of the cage may have it, not only one that the agent has started."""
    from warmcell.guest.live import agent, trees

    kills: list[tuple[int, str]] = []
    monkeypatch.setattr(trees, "kill", lambda leader, mark: kills.append((leader, mark)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        killer = agent.Agent(theirs)
        running, unused = os.getpid(), 1 << 30  # more than the kernel has
        killer._kill_tree(running, "ended")
        killer._kill_tree(unused, "ended")
        killer._started[running] = agent.Started("other")
        killer._kill_tree(running, "ended")
        killer._kill_tree(running, "other")
    assert kills == [(0, "ended"), (unused, "ended"), (0, "ended"), (running, "other")]


def test_a_terminal_that_cannot_be_given_its_size_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmcell.guest.live import starting

    def fail(*_: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(starting, "resize", fail)
    before = open_descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        starting.Terminal(80, 24)
    assert open_descriptors() <= before


#: An agent with room for fewer descriptors than a program has.
_FULL = """
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
agent.Agent(control).serve()
"""


def test_a_request_whose_descriptors_have_no_room_is_refused() -> None:
    """Numbers below those of the agent are still free then: the kernel passes the descriptors on."""
    from warmcell.guest.live.frames import Decoder, encode

    ours, theirs = socket.socketpair()
    answers: list[dict[str, Any]] = []
    with ours, theirs:
        ours.settimeout(30)
        start = {"id": 1, "op": "start", "mark": "1", "argv": ["true"], "cwd": "/", "env": {}, "descriptors": 3}
        with open(os.devnull, "rb") as null:
            socket.send_fds(ours, [encode(start)], [null.fileno()] * 3)
        ours.sendall(encode({"id": 2, "op": "resize", "pid": 7, "pty": [80, 24]}))
        with subprocess.Popen(
            [sys.executable, "-c", _AGENT + _FULL, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        ) as process:
            theirs.close()
            decoder = Decoder()
            try:
                while len(answers) < 3 and (data := ours.recv(1 << 16)):
                    answers += decoder.feed(data)
            finally:
                process.kill()
    assert [answer.get("errno") for answer in answers] == [None, errno.EMFILE, errno.ESRCH], answers


#: An agent with a descriptor too few for a terminal. Its control socket is 16, its wake-up sockets are 17 and 18.
_ALMOST_FULL = """
number = control.detach()
control = socket.socket(fileno=os.dup2(number, 16))
if number != 16:
    os.close(number)
resource.setrlimit(resource.RLIMIT_NOFILE, (23, 23))
agent.Agent(control).serve()
"""


def _ask_for_start(script: str, descriptors: list[int], **request: Any) -> tuple[dict[str, Any], list[str]]:
    """The answer, and the descriptors that the agent has more than before."""
    from warmcell.guest.live.frames import Decoder, encode

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        argv = [sys.executable, "-c", _AGENT + script, str(theirs.fileno())]
        with subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as process:
            theirs.close()
            decoder = Decoder()
            messages: list[dict[str, Any]] = []

            def receive() -> dict[str, Any]:
                while not messages:
                    messages.extend(decoder.feed(ours.recv(1 << 16)))
                return messages.pop(0)

            try:
                assert receive() == {"event": "ready"}
                before = os.listdir(f"/proc/{process.pid}/fd")
                whole = {"id": 1, "op": "start", "mark": "1", "env": {}, "descriptors": len(descriptors), **request}
                socket.send_fds(ours, [encode(whole)], descriptors)
                answer = receive()
                return answer, sorted(set(os.listdir(f"/proc/{process.pid}/fd")) - set(before))
            finally:
                process.kill()


def test_a_terminal_without_room_starts_nothing_and_leaves_nothing() -> None:
    with open(os.devnull, "rb") as null:
        answer, left = _ask_for_start(_ALMOST_FULL, [null.fileno()] * 2, argv=["true"], cwd="/", pty=[80, 24])
    assert (answer.get("errno"), answer.get("pid"), left) == (errno.EMFILE, None, [])


def test_the_files_of_a_program_that_cannot_be_started_are_removed(tmp_path: Path) -> None:
    place = tmp_path / "code"
    with open(os.devnull, "rb") as null:
        answer, _ = _ask_for_start(
            "agent.Agent(control).serve()", [null.fileno()] * 4,
            argv=["true"], cwd=str(tmp_path / "nowhere"), files=["main"], code_dir=str(place),
        )  # fmt: skip
    assert answer.get("errno") == errno.ENOENT
    assert not place.exists()


def test_connections_leave_the_low_descriptors_to_the_agent() -> None:
    """However many there are, it can still open /proc to look for what it is to kill."""
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answer, opened = _ask_for_start("agent.Agent(control).serve()", [theirs.fileno()], op="connect", port=port)
    assert "error" not in answer
    assert opened and all(int(number) >= 16 for number in opened)


def _load_relays() -> Any:
    spec = importlib.util.spec_from_file_location("live_loop", os.path.join(LIVE, "relays.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_end_of_a_connection_is_passed_on_without_room_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error there would end the agent, and its cage."""
    module = _load_relays()
    loop = module.Loop()
    (client, one), (server, other) = socket.socketpair(), socket.socketpair()

    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with client, server:
        module.join_sockets(loop, one, other, lambda: None)
        monkeypatch.setattr(os, "dup", refuse)
        client.sendall(b"last")
        loop.turn()
        client.shutdown(socket.SHUT_WR)
        loop.turn()
        server.settimeout(30)
        assert (server.recv(16), server.recv(16)) == (b"last", b"")
        server.shutdown(socket.SHUT_WR)
        loop.turn()


def test_what_came_last_is_served_first_and_the_host_at_the_end() -> None:
    """Else a host that is quick makes new connections while those that it has ended still hold their descriptors."""
    module = _load_relays()
    loop, order = module.Loop(), []
    pipes = [os.pipe() for _ in range(3)]
    try:
        for number, (readable, writable) in enumerate(pipes):
            os.write(writable, b"x")
            loop.watch(readable, module.READ, lambda number=number: order.append(number))
        loop.watch(pipes[0][0], module.READ, lambda: order.append(0))  # said again, as the agent does
        loop.turn()
    finally:
        for descriptor in (end for pipe in pipes for end in pipe):
            os.close(descriptor)
    assert order == [2, 1, 0]


@pytest.mark.needs("user namespaces")
@pytest.mark.parametrize("is_same", [True, False], ids=["the host's Python", "another Python"])
def test_it_is_compiled_by_the_host_for_its_own_python_alone(monkeypatch: pytest.MonkeyPatch, is_same: bool) -> None:
    """What the other form of its modules holds is not looked at: it is broken here."""
    packed = live_start._agent_files()["/code/live/modules"]
    magic, sources, compiled = marshal.loads(packed)
    broken = dict.fromkeys(sources, "(" if is_same else b"")
    kept = (magic, broken, compiled) if is_same else (b"none", sources, broken)
    files = {**live_start._agent_files(), "/code/live/modules": marshal.dumps(kept, 2)}
    monkeypatch.setattr(live_start, "_agent_files", lambda: files)
    with Sandbox() as sandbox:
        assert sandbox.spawn("echo $0").wait().stdout.endswith("sh\n")
        with sandbox.session("python") as session:
            assert session.run("1 / 0").error.name == "ZeroDivisionError"  # type: ignore[union-attr]

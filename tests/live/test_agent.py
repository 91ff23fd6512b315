"""The agent by itself, without a cage around it."""

from __future__ import annotations

import errno
import importlib.util
import marshal
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

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


def test_what_came_last_is_served_first_and_the_host_at_the_end() -> None:
    """Else a host that is quick makes new connections while those that it has ended still hold their descriptors."""
    spec = importlib.util.spec_from_file_location("live_loop", os.path.join(LIVE, "relays.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
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

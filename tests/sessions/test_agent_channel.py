"""The channel to an agent: any thread may send, and the loop sends the rest of what does not fit, whole and in order."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from warmcell.guest.live.frames import Decoder, encode
from warmcell.sessions.agent_channel import AgentChannel, ChannelClosed
from warmcell.sessions.loop import READ, Loop

pytestmark = pytest.mark.needs("linux")


@pytest.fixture
def talk() -> Iterator[tuple[AgentChannel, socket.socket]]:
    ours, agent = socket.socketpair()
    agent.settimeout(30)
    loop = Loop("test")
    made = AgentChannel(loop, ours, lambda message: None, lambda reason: loop.end())
    loop.start()
    yield made, agent
    loop.call(lambda: made.end("the test is over"))
    loop.join()
    ours.close()
    agent.close()


def test_what_does_not_fit_is_sent_whole_and_in_order(talk: tuple[AgentChannel, socket.socket]) -> None:
    conversation, agent = talk
    threads = [
        threading.Thread(
            target=lambda name=name: [conversation.ask("op", text=f"{name}{n}" * 30_000) for n in range(9)]
        )
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = conversation.ask("last")
    decoder = Decoder()
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["op"] != "last":
        heard += decoder.feed(agent.recv(1 << 20))
    assert len(heard) == 28 and all(message["text"][:2] * 30_000 == message["text"] for message in heard[:-1])
    for name in "abc":
        assert [m["text"][1] for m in heard[:-1] if m["text"][0] == name] == list("012345678")
    agent.sendall(encode({"id": heard[-1]["id"], "yes": 1}))
    assert last.result(30)["yes"] == 1
    deadline = time.monotonic() + 30
    while conversation._events != READ:  # or the loop would be told without end that there is room
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_descriptors_go_along_and_are_the_callers_to_close(talk: tuple[AgentChannel, socket.socket]) -> None:
    conversation, agent = talk
    reader, writer = os.pipe()
    conversation.ask("op", [writer])
    os.close(writer)
    _, received, _, _ = socket.recv_fds(agent, 1000, 4)
    os.write(received[0], b"here")
    assert os.read(reader, 10) == b"here"
    for descriptor in (reader, *received):
        os.close(descriptor)


class ShortOfDescriptors:
    """A socket whose user has too many descriptors in flight, for a moment."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._failures = control, 3

    def sendmsg(self, *message: Any) -> int:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return self._control.sendmsg(*message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)


def test_a_moment_with_too_many_descriptors_in_flight_ends_nothing(talk: tuple[AgentChannel, socket.socket]) -> None:
    conversation, agent = talk
    conversation._control = ShortOfDescriptors(conversation._control)  # type: ignore[assignment]
    answer = conversation.ask("op")
    (asked,) = Decoder().feed(agent.recv(1000))
    agent.sendall(encode({"id": asked["id"], "yes": 1}))
    assert answer.result(30)["yes"] == 1


def test_who_asks_when_it_is_over_is_told(talk: tuple[AgentChannel, socket.socket]) -> None:
    conversation, agent = talk
    before = conversation.ask("op")
    agent.close()
    with pytest.raises(ChannelClosed):
        before.result(30)
    with pytest.raises(ChannelClosed):
        conversation.ask("op").result(30)

"""A backend that runs nothing and answers from a script, for tests of what is built on Warmcell."""

from warmcell.backends.fake.backend import FakeBackend
from warmcell.backends.fake.script import Answer, FakeDelay, FakeGuest, FakeMemoryExceeded, FakeTimeout, Reply

__all__ = ["Answer", "FakeBackend", "FakeDelay", "FakeGuest", "FakeMemoryExceeded", "FakeTimeout", "Reply"]

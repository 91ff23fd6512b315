"""The agent's one loop: descriptors with what is to be done when they are ready."""

import select

READ, WRITE = select.POLLIN, select.POLLOUT


class Loop:
    """A callback that raises ends the agent; those who talk to others expect what others do."""

    def __init__(self):
        self._poll = select.poll()
        self._callbacks = {}

    def watch(self, descriptor, events, callback):
        """`callback()` when it is ready for any of `events`, or was hung up; without events it is let go of."""
        if not events:
            self.forget(descriptor)
            return
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, events)

    def forget(self, descriptor):
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def forget_all(self):
        for descriptor in list(self._callbacks):
            self.forget(descriptor)

    def turn(self):
        """The latest first: connections that have ended free their descriptors before the host's next wish is heard."""
        for descriptor, _ in reversed(self._poll.poll()):
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()

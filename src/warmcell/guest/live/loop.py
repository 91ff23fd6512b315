"""The agent's event loop: calls back when descriptors are ready."""

import select

READ, WRITE = select.POLLIN, select.POLLOUT


class Loop:
    """An exception in a callback ends the agent, so callbacks handle the errors of their peers."""

    def __init__(self):
        self._poll = select.poll()
        self._callbacks = {}

    def watch(self, descriptor, events, callback):
        """Calls `callback()` when the descriptor is ready for `events` or hung up; without events, unregisters it."""
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
        """Handles the newest descriptors first: closed connections free theirs before the next request is read."""
        for descriptor, _ in reversed(self._poll.poll()):
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback()

"""LocalNetwork: what the guests of one sandbox may reach at present, and what they have reached."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import NetworkingDisabled, PolicyViolation
from warmcell.lifetime.threads import in_thread

if TYPE_CHECKING:
    from warmcell.backends.process.egress import Egress
    from warmcell.core.types import Connection
    from warmcell.net import FetchPolicy, FetchRequest, FetchResponse, SafeClient
    from warmcell.net.connect.connection_log import ConnectionLog
    from warmcell.net.rules.rule_book import Narrowing
    from warmcell.sandbox.local.guests import Guest


class Fetcher:
    def __init__(self, policy: FetchPolicy | None) -> None:
        self.policy = policy
        self._log: ConnectionLog | None = None

    def use_log(self, log: ConnectionLog) -> None:
        """Call before the first fetch."""
        self._log = log

    def narrow(self, narrowing: Narrowing) -> None:
        if self._client is not None:
            self._client.narrow(narrowing)

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        if self._client is None:
            raise NetworkingDisabled
        return await self._client.fetch(request)

    async def answer_json(self, request: bytes) -> bytes:
        """What a guest's `fetch` and `curl` ask the host: JSON in, JSON out."""
        from warmcell.net import handle_fetch_json

        return await handle_fetch_json(self._client, request)

    @cached_property
    def _client(self) -> SafeClient | None:
        if self.policy is None:
            return None
        from warmcell.net import SafeClient

        return SafeClient(self.policy, log=self._log)


class LocalNetwork:
    """Belongs to a sandbox and outlives its guests, which `install` replaces. Imports `net` only if there is a
    network.
    """

    def __init__(self, fetcher: Fetcher, current_guest: Callable[[], Guest]) -> None:
        self._fetcher, self._current_guest = fetcher, current_guest
        self._log: ConnectionLog | None = None
        self.narrowing: Narrowing | None = None

    @property
    def _egress(self) -> Egress | None:
        return getattr(self._current_guest(), "egress", None)

    def attach(self) -> None:
        """Call after a guest was made, before it runs anything."""
        if self._egress is None and self._fetcher.policy is None:
            return
        from warmcell.net.connect.connection_log import ConnectionLog

        if self._log is None:
            self._log = ConnectionLog()
        self._fetcher.use_log(self._log)
        if self._egress is not None:
            self._egress.use_log(self._log)
        self._apply()

    async def update(self, update: object) -> None:
        """Narrows what the sandbox was made with; an earlier update no longer counts."""
        from warmcell.net.rules.network_update import read_update

        narrowing = read_update(update)
        self._check(narrowing)
        self.narrowing = narrowing
        self._apply()
        if self._log is not None:
            log = self._log
            await in_thread(lambda: log.cut(narrowing))

    def adopt(self, other: LocalNetwork) -> None:
        """A fork begins with what its original may reach."""
        self.narrowing = other.narrowing
        self._apply()

    def connections(self) -> list[Connection]:
        return [] if self._log is None else self._log.connections()

    def to_plain(self) -> dict[str, Any] | None:
        """The narrowing as JSON; None if there was no update."""
        if self.narrowing is None:
            return None
        from warmcell.net.rules.network_update import to_plain

        return to_plain(self.narrowing)

    def _apply(self) -> None:
        if self.narrowing is not None:
            self._fetcher.narrow(self.narrowing)
            if self._egress is not None:
                self._egress.narrow(self.narrowing)

    def _check(self, narrowing: Narrowing) -> None:
        from warmcell.net.rules.network_update import check_update
        from warmcell.net.rules.rule_book import RuleBook, compile_rules

        is_change = narrowing.allow is not None or bool(narrowing.deny)
        if is_change and getattr(self._current_guest(), "has_open_network", False):
            hint = "make the sandbox with allow_domain(...) in place of allow_network()"
            raise PolicyViolation("guests use the host's network, which cannot be narrowed", hint=hint)
        books = [RuleBook()] if self._egress is None else [self._egress.rule_book()]
        if self._fetcher.policy is not None:
            books.append(compile_rules(self._fetcher.policy))
        if narrowing.allow and not any(book.allow for book in books):
            hint = "make it with allow_domain(...) or fetch_policy="
            raise PolicyViolation("the sandbox was made without a network", hint=hint)
        check_update(narrowing, *books)

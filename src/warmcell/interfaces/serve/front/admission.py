"""Per-tenant limits over all workers: the front counts, and workers ask it over their control connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.front.control import Control, FrontRequests, Message
from warmcell.interfaces.serve.quotas import ConcurrencyLimiter, RateLimiter
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant, find_tenant, read_tokens


class Admission:
    """In the front: limits the rate and number of each tenant's requests, over all workers together."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tenants = read_limited_tenants(settings)
        self._rates, self._concurrency = RateLimiter(), ConcurrencyLimiter()

    def reload(self) -> None:
        """Read the tenants again. Keeps the present ones if the file has an error, which the workers log."""
        with suppress(SandboxError):
            self._tenants = read_limited_tenants(self._settings)

    def find_tenant(self, token: str) -> Tenant | None:
        return find_tenant(self._tenants, token) if self._tenants else None

    def find_by_id(self, identity: str) -> Tenant | None:
        return next((tenant for tenant in self._tenants if tenant.id == identity), None)

    def enter(self, tenant: Tenant | None, *, ends_something: bool) -> None:
        """Count a request until `leave`. Raises `HttpError` 429 over the limit."""
        if tenant is not None:
            self._rates.take(tenant)
            self._concurrency.enter(tenant, ends_something=ends_something)

    def leave(self, tenant: Tenant | None) -> None:
        if tenant is not None:
            self._concurrency.leave(tenant)

    @contextmanager
    def count(self, token: str, *, ends_something: bool) -> Iterator[None]:
        """Count a request that the front itself has received."""
        tenant = self.find_tenant(token)
        self.enter(tenant, ends_something=ends_something)
        try:
            yield
        finally:
            self.leave(tenant)


def read_limited_tenants(settings: Settings) -> tuple[Tenant, ...]:
    return () if settings.tokens is None else read_tokens(settings.tokens)


class WorkerRequests:
    """In the front: the requests that one worker has received from clients. `close` ends all of them."""

    def __init__(self, admission: Admission, control: Control) -> None:
        self._admission, self._control = admission, control
        self._active: dict[int, Tenant | None] = {}

    def handle(self, message: Message) -> None:
        if "exit" in message:
            self._admission.leave(self._active.pop(message["exit"], None))
            return
        number = message["enter"]
        # A tenant that was revoked a moment ago is not counted; the worker rejects its token.
        tenant = self._admission.find_by_id(message["tenant"])
        try:
            self._admission.enter(tenant, ends_something=message["ends_something"])
        except HttpError as error:
            self._control.send({"refused": number, "message": error.message, "headers": error.headers})
        else:
            self._active[number] = tenant
            self._control.send({"entered": number})

    def close(self) -> None:
        for tenant in self._active.values():
            self._admission.leave(tenant)
        self._active.clear()


class FrontAdmission(FrontRequests):
    """In a worker: asks the front whether a tenant may send one more request."""

    def request(self, tenant: Tenant, *, ends_something: bool) -> AbstractAsyncContextManager[None]:
        """Count a request while the block runs. Raises `HttpError` 429 over the limit."""
        return self._ask("enter", "exit", tenant=tenant.id, ends_something=ends_something)

    def handle(self, message: Message) -> None:
        if "entered" in message:
            self._answer(message["entered"], None)
        else:
            self._answer(message["refused"], HttpError(429, message["message"], headers=message["headers"]))

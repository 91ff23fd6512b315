"""The state that the components of a local sandbox share: settings, files, guest, network and operations."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from warmcell.core.errors import NetworkingDisabled, PolicyViolation
from warmcell.core.light import on_error
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.local.guest_config import GuestConfig, list_protected
from warmcell.sandbox.local.guests import Guest, no_live_cage
from warmcell.sandbox.local.operations import Operations
from warmcell.sandbox.settings import SandboxSettings
from warmcell.workspace.mount_points import OwnDirectory, host_path
from warmcell.workspace.workspace import AnyPath, Workspace

if TYPE_CHECKING:
    from warmcell.backends.process.egress import Egress
    from warmcell.changes.layer import ChangeLayer
    from warmcell.core.types import Connection
    from warmcell.net import FetchPolicy, FetchRequest, FetchResponse, SafeClient
    from warmcell.net.connect.connection_log import ConnectionLog
    from warmcell.net.rules.rule_book import Narrowing
    from warmcell.sandbox.local.guests import Guest
    from warmcell.sandbox.local.pip_packages import Packages


class Fetcher:
    def __init__(self, policy: FetchPolicy | None) -> None:
        self.policy = policy
        #: Set before the first fetch.
        self.log: ConnectionLog | None = None

    def narrow(self, narrowing: Narrowing) -> None:
        if self._client is not None:
            self._client.narrow(narrowing)

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        if self._client is None:
            raise NetworkingDisabled
        return await self._client.fetch(request)

    async def answer_json(self, request: bytes) -> bytes:
        """Answer a guest's `fetch` and `curl`: JSON in, JSON out."""
        from warmcell.net import handle_fetch_json

        return await handle_fetch_json(self._client, request)

    @cached_property
    def _client(self) -> SafeClient | None:
        if self.policy is None:
            return None
        from warmcell.net import SafeClient

        return SafeClient(self.policy, log=self.log)


class LocalNetwork:
    """Belongs to a sandbox and outlives its guests, which `install` replaces. Imports `net` only if there is a
    network.
    """

    def __init__(self, fetcher: Fetcher, current_guest: Callable[[], Guest]) -> None:
        self._fetcher, self._current_guest = fetcher, current_guest
        self._log: ConnectionLog | None = None
        self.narrowing: Narrowing | None = None
        #: Of all guests: those that `install` replaced may still have runs in progress.
        self._egresses: weakref.WeakSet[Egress] = weakref.WeakSet()

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
        self._fetcher.log = self._log
        if self._egress is not None:
            self._egress.use_log(self._log)
            self._egresses.add(self._egress)
        self._apply()

    async def update(self, update: object) -> None:
        """Narrows the rules that the sandbox was made with. Replaces earlier updates."""
        from warmcell.net.rules.network_update import read_update

        narrowing = read_update(update)
        self._check(narrowing)
        self.narrowing = narrowing
        self._apply()
        if self._log is not None:
            log = self._log
            await in_thread(lambda: log.cut(narrowing))

    def adopt(self, other: LocalNetwork) -> None:
        """A fork starts with the current rules of its original."""
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
            for egress in tuple(self._egresses):
                egress.narrow(self.narrowing)

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


def _open_layer(settings: SandboxSettings, parent: ChangeLayer | None) -> ChangeLayer:
    from warmcell.changes.layer import ChangeLayer
    from warmcell.workspace.mount_points import guest_work_path

    assert settings.work_dir is not None
    directory = host_path("work_dir", settings.work_dir)
    home = guest_work_path(settings.work_path, directory)
    enforcer = settings.enforcer if isinstance(settings.enforcer, str) else settings.enforcer.name
    may_mount = enforcer in ("auto", "native")
    resumes, keeps = settings.changes in ("resume", "keep"), settings.changes == "keep"
    return ChangeLayer(
        directory, home, resume=resumes and parent is None, parent=parent, may_mount=may_mount, keeps=keeps
    )


T = TypeVar("T")


class SandboxContext:
    """Belongs to one sandbox and, once it is used, to one event loop."""

    def __init__(self, settings: SandboxSettings, parent: ChangeLayer | None = None) -> None:
        self.id = secrets.token_hex(16)
        self.settings = settings
        self.limits = settings.effective_limits
        self.operations = Operations()
        self.fetcher = Fetcher(settings.fetch_policy)
        #: What `install` added; a directory that never changes.
        self.packages: Packages | None = None
        #: Keeps the changes of guests apart from the work directory; None: they write to it.
        self.layer = None if settings.changes is None else _open_layer(settings, parent)
        with on_error(self._give_up_layer):
            self.workspace = self._make_workspace()
            with on_error(self.workspace.close):
                self.guest = self.make_guest()
                self.network = LocalNetwork(self.fetcher, lambda: self.guest)
                self.network.attach()
                if settings.live and not getattr(self.guest, "has_live_cage", False):
                    raise no_live_cage(settings.backend_name)

    def _make_workspace(self) -> Workspace:
        settings = self.settings
        return Workspace(
            settings.work_dir,
            settings.mounts,
            track_changes=settings.track_changes,
            disk_mb=self.limits.disk_mb,
            work_path=settings.work_path,
            layer=self.layer,
            protected=self._find_protected,
        )

    def _find_protected(self, directory: str) -> tuple[tuple[str, ...], ...]:
        """What tools of the host execute. In a layer it is flagged when it is committed, and not on the host before."""
        work_dir = self.settings.work_dir
        is_exempt = self.layer is not None or isinstance(work_dir, OwnDirectory)
        if is_exempt and work_dir is not None and directory == host_path("work_dir", work_dir):
            return ()
        return list_protected(self.settings.policy, directory)  # also of mounts beside a layer: they are not in it

    def close_files(self) -> None:
        """Closes the work directory, and removes it if it is private. Blocking."""
        try:
            self.workspace.close()
        finally:
            if self.layer is not None:
                self.layer.close()

    def _give_up_layer(self) -> None:
        if self.layer is not None:
            self.layer.give_up()

    def make_guest(self) -> Guest:
        """A guest with the work directory and the current packages."""
        settings = self.settings
        copy = None if self.layer is None or self.layer.overlay is not None else self.layer.copy_path
        is_own = self.layer is None and (self.workspace.is_private or isinstance(settings.work_dir, OwnDirectory))
        config = GuestConfig(
            work_dir=copy or self.workspace.host_path,
            is_work_writable=self.workspace.is_writable,
            is_host_dir=not is_own and copy is None,
            is_own=is_own,
            mounts=tuple(settings.mounts),
            env=settings.env or {},
            memory_limit_mb=settings.memory_limit_mb,
            fuel=settings.fuel,
            policy=settings.policy,
            fetch=self.fetcher.answer_json if settings.fetch_policy is not None else None,
            fetch_policy=settings.fetch_policy,
            process_config=settings.config,
            enforcer=settings.enforcer,
            allow_weaker=settings.allow_weaker,
            image=settings.image,
            user=settings.user,
            idle_timeout=settings.idle_timeout,
            work_path=self.workspace.guest_path,
            packages=None if self.packages is None else self.packages.path,
            overlay=None if self.layer is None else self.layer.overlay,
        )
        return settings.guest_factory(settings.backend, config)

    async def guest_cwd(self, cwd: AnyPath | None) -> str:
        """A directory of the workspace or a mount, as the guest sees it."""
        if self.workspace.has_begun and (standing := self.workspace.standing_cwd(cwd)) is not None:
            return standing  # a thread would cost as much as a small run
        return await in_thread(lambda: self._record_state_and_run(lambda: self.workspace.guest_cwd(cwd)))

    def _record_state_and_run(self, work: Callable[[], T]) -> T:
        self.workspace.begin()
        return work()

    async def on_disk(self, work: Callable[[], T], discard: Callable[[T], object] | None = None) -> T:
        """Runs blocking file work in a thread, after the state that `diff` compares with was recorded.

        `discard` is called with the result that a cancelled caller does not get.
        """
        return await self.operations.run(in_thread(lambda: self._record_state_and_run(work), discard=discard))

    async def start(self) -> None:
        if self.workspace.has_begun:  # a thread would cost as much as a small run
            self.operations.check_open()
        else:
            await self.on_disk(lambda: None)

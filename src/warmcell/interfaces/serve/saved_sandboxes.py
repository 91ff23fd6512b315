"""Keeps the records of sandboxes up to date, and brings the sandboxes back when a server starts with `--state`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sessions import SavedSessions, sessions_of, write_all
from warmcell.interfaces.serve.saved_state import SANDBOXES, SavedState, StateHome
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.net.rules.network_update import from_plain
from warmcell.sandbox.asynchronous import AsyncSandbox

_log = logging.getLogger("warmcell.serve")
#: Makes the sandbox of a record, and attaches what its protocol keeps with it.
Restore = Callable[[Service, Tenant, dict[str, Any], StateHome], Awaitable["RestoredSandbox"]]


class RestoredSandbox:
    """`attach` is called with its entry. `lost` names files that cannot come back, if there may be some."""

    def __init__(self, sandbox: AsyncSandbox, attach: Callable[[SandboxEntry], object], lost: str = "") -> None:
        self.sandbox, self.attach, self.lost = sandbox, attach, lost


class SavedSandbox:
    """Kept in the `state` of an entry: its home, its packages, and what its protocol wants to find again."""

    def __init__(self, protocol: str, home: StateHome, describe: Callable[[], dict[str, Any]]) -> None:
        self.protocol, self.home, self.describe = protocol, home, describe
        self.packages: str | None = None


def save_sandbox(service: Service, entry: SandboxEntry, *, is_durable: bool = False, lost: str = "") -> None:
    """Write the record of a sandbox. `lost` says what cannot come back."""
    saved, state = entry.state.find(SavedSandbox), service.saved
    if saved is None or state is None:
        return
    document = {
        "id": entry.id,
        "tenant": entry.tenant_id,
        "created": entry.created,
        "expires": entry.expires,
        "metadata": entry.metadata,
        "protocol": saved.protocol,
        "home": saved.home.name,
        "packages": saved.packages,
        "network": entry.sandbox.network_update,
        "lost": lost,
        "own": saved.describe(),
    }
    if (sessions := sessions_of(entry)) is not None:
        document |= sessions.describe()
    state.put(SANDBOXES, entry.id, document, is_durable=is_durable)


async def save_now(service: Service, entry: SandboxEntry) -> None:
    """The record and the files are on disk afterwards."""
    if service.saved is not None:
        await in_thread(lambda: save_sandbox(service, entry, is_durable=True))


async def save_packages(service: Service, entry: SandboxEntry) -> None:
    """After an installation."""
    saved, state = entry.state.find(SavedSandbox), service.saved
    if saved is not None and state is not None:
        source, before = entry.sandbox.packages_directory, saved.packages
        saved.packages = await in_thread(lambda: state.keep_packages(source, before))
        save_sandbox(service, entry)


async def keep_new_sandbox(service: Service, entry: SandboxEntry, saved: SavedSandbox) -> None:
    """From now on the sandbox has a record, until it is removed. It is removed at once if that cannot be written."""
    keep_sandbox(service, entry, saved)
    try:
        save_sandbox(service, entry)
    except BaseException:
        await service.sandboxes.remove(entry)
        raise


def keep_sandbox(service: Service, entry: SandboxEntry, saved: SavedSandbox) -> None:
    state = service.saved
    assert state is not None

    def forget() -> None:
        state.remove(SANDBOXES, entry.id)
        state.remove_packages(saved.packages)
        sessions.forget()
        saved.home.close()

    entry.state.put(saved)
    saved.home.is_kept = False
    sessions = entry.state.get(SavedSessions, lambda: SavedSessions(state, entry, lambda: entry.on_change()))
    entry.on_close.append(lambda: in_thread(forget))
    entry.on_change = lambda: save_sandbox(service, entry)


async def restore_sandboxes(service: Service, restorers: Mapping[str, Restore]) -> None:
    """Bring back the sandboxes of the last server, and name those that cannot come back."""
    state = service.saved
    if state is None:
        return
    homes, packages, images = set(), set(), set()
    for document in await in_thread(lambda: state.documents(SANDBOXES)):
        try:
            images |= await _restore(service, state, restorers, document)
        except _NotRestored as error:
            _log.warning("sandbox %s does not come back: %s", document["id"], error)
            if error.is_final:
                state.remove(SANDBOXES, str(document["id"]))
                continue
            _log.warning("its files stay: the next start of the server tries again, until it expires")
            images |= _images_in(document)
        homes.add(str(document.get("home")))
        packages.add(str(document.get("packages")))
    homes |= {str(document.get("home")) for document in state.documents("snapshots")}
    await in_thread(lambda: state.remove_unused(homes, packages, images))


class _NotRestored(Exception):
    """`is_final`: the next server could not restore it either, so its files are removed."""

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.is_final = is_final


async def _restore(
    service: Service, state: SavedState, restorers: Mapping[str, Restore], document: dict[str, Any]
) -> set[str]:
    """Restore one sandbox, and return the images of its sessions. Raises `_NotRestored`."""
    try:
        own, created, expires = document["own"], float(document["created"]), float(document["expires"])
        tenant, home = service.find_tenant_by_id(str(document["tenant"])), state.find_home(document["home"])
        restore, metadata = restorers[str(document["protocol"])], dict(document["metadata"])
        if not isinstance(own, dict) or not math.isfinite(created + expires):
            raise ValueError("a field has a value of the wrong kind")
    except (KeyError, TypeError, ValueError) as error:
        raise _NotRestored(f"its record is damaged ({error!r})") from None
    if tenant is None:
        raise _NotRestored("its token was revoked")
    if home is None:
        raise _NotRestored("its files are gone")
    if expires < time.time() and not own.get("is_kept_after_expiry"):
        raise _NotRestored("it expired while the server was stopped")
    home.is_kept, source = True, state.find_packages(document.get("packages"))
    try:
        made = await restore(service, tenant, own, home)
        await _prepare(made.sandbox, document.get("network"), source)
    except (SandboxError, HttpError) as error:  # a full disk, or an image or a volume that is not there at the moment
        raise _NotRestored(str(error), is_final=False) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _NotRestored(f"its record is damaged ({error!r})") from None
    entry = service.sandboxes.restore(made.sandbox, tenant, document["id"], created, expires, metadata)
    saved = SavedSandbox(str(document["protocol"]), home, dict)
    saved.packages = None if source is None else document["packages"]
    entry.state.put(saved)
    sessions = _load_sessions(state, entry, document)
    made.attach(entry)
    lost = [document.get("lost") or "what ran in it, if anything", *([made.lost] if made.lost else [])]
    _log.warning("sandbox %s is back; lost: %s", entry.id, "; ".join(lost))
    keep_sandbox(service, entry, saved)
    try:
        save_sandbox(service, entry)
    except SandboxError as error:
        _log.error("cannot write the record of sandbox %s, the former one stays: %s", entry.id, error)
    return sessions.images()


async def _prepare(sandbox: AsyncSandbox, network: Any, packages: str | None) -> None:
    """What was changed after the sandbox was made. If that fails, the sandbox is closed."""
    try:
        if network is not None:
            await sandbox.update_network(from_plain(network["allow"], network["deny"]))  # type: ignore[arg-type]
        if packages is not None:
            await sandbox.use_packages(packages)
    except BaseException:
        await sandbox.destroy()
        raise


def _images_in(document: dict[str, Any]) -> set[str]:
    found = document.get("sessions")
    return {str(item.get("image")) for item in found if isinstance(item, dict)} if isinstance(found, list) else set()


def _load_sessions(state: SavedState, entry: SandboxEntry, document: dict[str, Any]) -> SavedSessions:
    sessions = entry.state.put(SavedSessions(state, entry, lambda: entry.on_change()))
    try:
        sessions.load(document)
    except (TypeError, ValueError) as error:
        _log.warning("the sessions of sandbox %s do not come back: their record is damaged (%r)", entry.id, error)
    return sessions


async def save_all(service: Service) -> None:
    """The server stops: everything is on disk when this returns."""
    state = service.saved
    if state is None:
        return
    await write_all(service.sandboxes.all())

    def save() -> None:
        for entry in service.sandboxes.all():
            try:
                save_sandbox(service, entry, lost=_describe_loss(entry))
            except SandboxError as error:
                _log.error("cannot write the record of sandbox %s, the former one stays: %s", entry.id, error)
        state.is_closing = True
        state.sync_files()

    await in_thread(save)


def _describe_loss(entry: SandboxEntry) -> str:
    lost = [f"{count} {name}" for name, count in entry.count_running().items() if count]
    if (sessions := sessions_of(entry)) is not None:
        lost += [f"session {identity} ({reason})" for identity, reason in sessions.lost.items()]
    return " and ".join(lost) or "nothing"

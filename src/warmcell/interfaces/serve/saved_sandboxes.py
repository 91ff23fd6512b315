"""Records of sandboxes for `--state`: written while a server runs, and restored when the next one starts."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sessions import SavedSessions, saving_lock, sessions_of, write_all
from warmcell.interfaces.serve.saved_state import SANDBOXES, SavedState, explain_failure, is_name
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.state_homes import StateHome
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.threads import in_thread
from warmcell.net.rules.network_update import from_plain
from warmcell.sandbox.asynchronous import AsyncSandbox

_log = logging.getLogger("warmcell.serve")
#: How long the programs of a sandbox may take to pause when the server stops.
_PAUSE_SECONDS = 10.0
#: How long the files of sandboxes that expired while the server was stopped stay after its start, and how often the
#: clock is read meanwhile: it may be ahead while a machine starts.
GRACE_SECONDS, CLOCK_SECONDS = 900.0, 10.0
#: Makes the sandbox of a record, with the state that its protocol keeps.
Restore = Callable[[Service, Tenant, dict[str, Any], StateHome], Awaitable["RestoredSandbox"]]


class RestoredSandbox:
    """A sandbox made from its record. `attach` is called with its entry. `lost` names files that are not restored."""

    def __init__(self, sandbox: AsyncSandbox, attach: Callable[[SandboxEntry], object], lost: str = "") -> None:
        self.sandbox, self.attach, self.lost = sandbox, attach, lost


class SavedSandbox:
    """What the record of a sandbox is made of: home, packages, its protocol's fields. Kept in the entry's `state`."""

    def __init__(self, protocol: str, home: StateHome, describe: Callable[[], dict[str, Any]]) -> None:
        self.protocol, self.home, self.describe = protocol, home, describe
        self.packages: str | None = None
        #: Set when the sandbox is removed: no record of it is written after that.
        self.is_removed = False
        #: Held from an installation until its packages are saved.
        self.installing = asyncio.Lock()


def save_sandbox(service: Service, entry: SandboxEntry, *, is_durable: bool = False, lost: str = "") -> None:
    """Write the record of a sandbox. `lost` says what will not be restored."""
    saved, state = entry.state.find(SavedSandbox), service.saved
    if saved is None or state is None or saved.is_removed:
        return
    number = state.next_number()
    document = {
        "id": entry.id,
        "tenant": entry.tenant_id,
        "created": entry.created,
        "expires": entry.expires,
        "metadata": entry.metadata,
        "protocol": saved.protocol,
        "home": saved.home.name,
        "files": saved.home.version,
        "packages": saved.packages,
        "network": entry.sandbox.network_update,
        "lost": lost,
        "own": saved.describe(),
    }
    if (sessions := sessions_of(entry)) is not None:
        document |= sessions.describe()
    state.put(
        SANDBOXES,
        entry.id,
        document,
        number=number,
        is_durable=is_durable,
        is_wanted=lambda: not saved.is_removed,
    )


async def save_now(service: Service, entry: SandboxEntry, lost: str = "") -> None:
    """Write the record and the files to disk. If that fails, the previous ones stay."""
    saved = entry.state.find(SavedSandbox)
    if saved is not None:
        async with saving_lock(entry):
            await in_thread(lambda: _save_files(service, entry, saved.home, lost))


def _save_files(service: Service, entry: SandboxEntry, home: StateHome, lost: str) -> None:
    former = home.version
    with explain_failure("save the files"):
        home.save()
    if home.skipped:
        unsaved = f"{len(home.skipped)} files that cannot be saved, such as {home.skipped[0]!r}"
        lost = unsaved if lost in ("", "nothing") else f"{lost} and {unsaved}"
    with on_error(lambda: setattr(home, "version", former)):
        save_sandbox(service, entry, is_durable=True, lost=lost)
    home.drop_previous_versions()


async def install_packages(service: Service, entry: SandboxEntry, names: Sequence[str], manager: str) -> None:
    """Install packages, and save them. One call at a time for each sandbox, so that the last copy has all of them."""
    saved = entry.state.find(SavedSandbox)
    if saved is None:
        await entry.sandbox.install(*names, manager=manager)
        return
    async with saved.installing:
        await entry.sandbox.install(*names, manager=manager)
        await save_packages(service, entry)


async def save_packages(service: Service, entry: SandboxEntry) -> None:
    """Copy installed packages to the state, and name the copy in the record. Goes on if the caller is cancelled."""
    saved, state = entry.state.find(SavedSandbox), service.saved
    if saved is not None and state is not None:
        await in_thread(lambda: _save_packages(service, entry, saved, state))


def _save_packages(service: Service, entry: SandboxEntry, saved: SavedSandbox, state: SavedState) -> None:
    before, copy = saved.packages, state.keep_packages(entry.sandbox.packages_directory)

    def take_back() -> None:
        saved.packages = before
        state.remove_packages(copy)

    saved.packages = copy
    with on_error(take_back):
        save_sandbox(service, entry)
    state.remove_packages(before)  # now that no record names it


async def keep_new_sandbox(service: Service, entry: SandboxEntry, saved: SavedSandbox) -> None:
    """Keep a record of the sandbox until it is removed. If the record cannot be written, remove the sandbox."""
    keep_sandbox(service, entry, saved)
    async with on_error(lambda: service.sandboxes.remove(entry)):
        save_sandbox(service, entry)


def keep_sandbox(service: Service, entry: SandboxEntry, saved: SavedSandbox) -> None:
    state = service.saved
    assert state is not None

    def forget() -> None:
        saved.is_removed = not state.is_closing  # before its record goes
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
    """Restore the sandboxes of the previous server, and log those that cannot be restored."""
    state = service.saved
    assert state is not None
    homes, packages, images = set(), set(), set()
    expired: list[dict[str, Any]] = []
    for document in await in_thread(lambda: state.documents(SANDBOXES)):
        try:
            images |= await _restore(service, state, restorers, document)
        except _NotRestored as error:
            if error.is_final:
                _log.warning("cannot restore sandbox %s: %s", document["id"], error)
                state.remove(SANDBOXES, str(document["id"]))
                continue
            if error.is_damaged:
                state.has_unreadable = True
            if error.is_expired:
                _log.warning("cannot restore sandbox %s: %s", document["id"], error)
                expired.append(document)
            else:
                place = f"{state.path}/{SANDBOXES}/{document['id']}.json"
                remedy = f"its files stay, and the next start tries again; to give it up, remove {place}"
                _log.warning("cannot restore sandbox %s: %s; %s", document["id"], error, remedy)
            images |= _images_in(document)
        homes.add(str(document.get("home")))
        packages.add(str(document.get("packages")))
    homes |= {str(document.get("home")) for document in state.documents("snapshots")}
    await in_thread(lambda: state.remove_unused(homes, packages, images))
    if expired:
        service.run_in_background(_wait_for_clock(service, state, restorers, expired))


async def _wait_for_clock(
    service: Service, state: SavedState, restorers: Mapping[str, Restore], expired: list[dict[str, Any]]
) -> None:
    """Restore sandboxes that have not expired after all when the clock is set back. Remove the others in the end."""
    end = time.monotonic() + GRACE_SECONDS
    while expired and time.monotonic() < end:
        await asyncio.sleep(CLOCK_SECONDS)
        waiting, expired = expired, []
        for document in waiting:
            try:
                await _restore(service, state, restorers, document)
            except _NotRestored as error:
                if error.is_expired:
                    expired.append(document)
                else:  # left to the next start
                    _log.warning("cannot restore sandbox %s: %s", document["id"], error)
    for document in expired:
        await in_thread(partial(_remove_expired, state, document))


def _remove_expired(state: SavedState, document: dict[str, Any]) -> None:
    try:
        state.remove(SANDBOXES, str(document["id"]))
        state.remove_packages(document.get("packages"))
        if (home := state.find_copy(document.get("home"))) is not None:
            home.close()
        if not state.is_closing:
            for image in _images_in(document):
                state.remove_image(image)
    except (SandboxError, OSError) as error:  # the next start removes what no record names
        _log.warning("cannot remove all files of the expired sandbox %s: %s", document["id"], error)


class _NotRestored(Exception):
    """`is_final`: the next server could not restore it either, so its files are removed.

    `is_damaged`: it may have named other files, so none are removed. `is_expired`: by the clock, which may be wrong.
    """

    def __init__(
        self, reason: str, *, is_final: bool = True, is_damaged: bool = False, is_expired: bool = False
    ) -> None:
        super().__init__(reason)
        self.is_final = is_final and not is_damaged and not is_expired
        self.is_damaged, self.is_expired = is_damaged, is_expired


async def _restore(
    service: Service, state: SavedState, restorers: Mapping[str, Restore], document: dict[str, Any]
) -> set[str]:
    """Restore one sandbox, and return the images of its sessions. Raises `_NotRestored`."""
    try:
        own, created, expires = document["own"], float(document["created"]), float(document["expires"])
        tenant = service.find_tenant_by_id(str(document["tenant"]))
        find_files = state.find_home(document["home"], document.get("files"))
        restore, metadata = restorers[str(document["protocol"])], dict(document["metadata"])
        if not isinstance(own, dict) or not math.isfinite(created + expires):
            raise ValueError("a field has the wrong type")
    except (KeyError, TypeError, ValueError) as error:
        raise _NotRestored(f"its record is damaged ({error!r})", is_damaged=True) from None
    last = created + (math.inf if tenant is None else tenant.lifetime)
    if (last if own.get("is_kept_after_expiry") else min(last, expires)) < time.time():
        raise _NotRestored("it expired while the server was stopped", is_expired=True)
    if state.is_encrypted and document.get("files") is None:
        raise _NotRestored("its files were never saved: the server was killed before it was paused")
    if find_files is None:
        raise _NotRestored("its files are gone", is_damaged=not is_name(document["home"]))
    if tenant is None:  # revoked, or the server was started with another file: nothing is removed by mistake
        raise _NotRestored("its token is not in the token file of this server", is_final=False)
    packages = document["packages"] if state.has_packages(document.get("packages")) else None
    try:
        home = await in_thread(find_files, discard=lambda made: made.close())
        home.is_kept = True
        async with on_error(lambda: in_thread(home.close)):
            made = await restore(service, tenant, own, home)
            await _apply_changes(made.sandbox, document.get("network"), state, packages)
    except (SandboxError, HttpError) as error:  # a full disk, or an image or a volume that is not there at the moment
        raise _NotRestored(str(error), is_final=False) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _NotRestored(f"its record is damaged ({error!r})", is_damaged=True) from None
    entry = service.sandboxes.restore(made.sandbox, tenant, document["id"], created, expires, metadata)
    saved = SavedSandbox(str(document["protocol"]), home, dict)
    saved.packages = packages
    entry.state.put(saved)
    sessions = _load_sessions(state, entry, document)
    try:
        made.attach(entry)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        await service.sandboxes.remove(entry)
        await in_thread(home.close)
        raise _NotRestored(f"its record is damaged ({error!r})", is_damaged=True) from None
    lost = [str(document.get("lost") or "what ran in it, if anything"), *([made.lost] if made.lost else [])]
    _log.warning("restored sandbox %s; lost: %s", entry.id, "; ".join(lost))
    keep_sandbox(service, entry, saved)
    try:
        save_sandbox(service, entry)
    except SandboxError as error:
        _log.error("cannot write the record of sandbox %s, keeping the previous one: %s", entry.id, error)
    await in_thread(home.drop_previous_versions)
    return sessions.images()


async def _apply_changes(sandbox: AsyncSandbox, network: Any, state: SavedState, packages: str | None) -> None:
    """Apply the network and the packages that were changed after creation. Closes the sandbox if that fails."""
    async with on_error(sandbox.destroy):
        if network is not None:
            await sandbox.update_network(from_plain(**network))  # type: ignore[arg-type]
        if packages is not None:
            loaded = await in_thread(lambda: state.load_packages(packages), discard=lambda made: made.close())
            try:
                await sandbox.use_packages(loaded.path)
            finally:
                await in_thread(loaded.close)


def _images_in(document: dict[str, Any]) -> set[str]:
    found = document.get("sessions")
    return {str(item.get("image")) for item in found if isinstance(item, dict)} if isinstance(found, list) else set()


def _load_sessions(state: SavedState, entry: SandboxEntry, document: dict[str, Any]) -> SavedSessions:
    sessions = entry.state.put(SavedSessions(state, entry, lambda: entry.on_change()))
    try:
        sessions.load(document)
    except (TypeError, ValueError) as error:
        _log.warning("cannot restore the sessions of sandbox %s: their record is damaged (%r)", entry.id, error)
    return sessions


async def save_all(service: Service) -> None:
    """Save everything to disk; called when the server stops."""
    state = service.saved
    assert state is not None
    try:
        await _save_all(service, state)
    finally:  # whatever could not be saved: when the sandboxes are closed next, their files have to stay
        state.is_closing = True


async def _save_all(service: Service, state: SavedState) -> None:
    await write_all(service.sandboxes.all())
    if state.is_encrypted:
        await asyncio.gather(*(_save_at_stop(service, entry) for entry in service.sandboxes.all()))
        return

    def save() -> None:
        for entry in service.sandboxes.all():
            try:
                save_sandbox(service, entry, lost=_describe_loss(entry))
            except (SandboxError, OSError) as error:
                _log.error("cannot write the record of sandbox %s, keeping the previous one: %s", entry.id, error)
        state.sync_files()

    await in_thread(save)


async def _save_at_stop(service: Service, entry: SandboxEntry) -> None:
    """Save one sandbox. Its programs are paused first, so that the copy is of one moment."""
    lost = _describe_loss(entry)
    try:
        with suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                await entry.sandbox.pause_programs()
        await save_now(service, entry, lost)
    except (SandboxError, OSError) as error:
        _log.error("cannot save sandbox %s, keeping what was saved before: %s", entry.id, error)


def _describe_loss(entry: SandboxEntry) -> str:
    lost = [f"{count} {name}" for name, count in entry.count_running().items() if count]
    if (sessions := sessions_of(entry)) is not None:
        lost += [f"session {identity} ({reason})" for identity, reason in sessions.lost.items()]
    return " and ".join(lost) or "nothing"

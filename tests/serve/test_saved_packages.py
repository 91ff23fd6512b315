"""Packages of a sandbox over a restart of a server with `--state`, and variables that need them."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from warmcell.interfaces.serve.app import restore_all
from warmcell.interfaces.serve.saved_sandboxes import SavedSandbox, install_packages, keep_sandbox, save_packages
from warmcell.interfaces.serve.saved_sessions import restore_sessions
from warmcell.interfaces.serve.service import Service, local_tenant
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.v1.sandbox_state import keep_sessions, state_of

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


@pytest.mark.parametrize("key", [None, "1a" * 32])
async def test_packages_and_variables_of_their_types_come_back(tmp_path: Path, key: str | None) -> None:
    if key is not None:
        pytest.importorskip("cryptography")
    settings = Settings(state=str(tmp_path / "state"), state_key=key)
    tenant = local_tenant(settings)
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "shapes.py").write_text("class Square:\n    def __init__(self, side): self.side = side\n")

    service = Service(settings)
    await restore_all(service)
    assert service.saved is not None
    home = service.saved.make_home()
    entry = service.sandboxes.add(lambda: service.make_sandbox(tenant, work_dir=home.path), tenant, 600.0, {})
    keep_sandbox(service, entry, SavedSandbox("v1", home, lambda: {"asked": {}}))
    keep_sessions(entry)
    await entry.sandbox.use_packages(str(installed))  # as `install` does, which needs an index
    await save_packages(service, entry)
    session = state_of(entry).add_session(await entry.sandbox.session("python")).session
    assert (await session.run("from shapes import Square\nfound = Square(3)")).error is None
    await service.aclose()

    service = Service(settings)
    await restore_all(service)
    try:
        (entry,) = service.sandboxes.all()
        assert (await entry.sandbox.run("import shapes; print(shapes.Square(4).side)")).stdout == "4\n"
        await restore_sessions(entry)
        (again,) = state_of(entry).sessions.values()
        assert again.session.id == session.id
        assert (await again.session.run("found.side, type(found) is Square")).value == "(3, True)"
    finally:
        await service.sandboxes.aclose()
        await service.aclose()


async def test_the_last_of_concurrent_installs_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy is slow, and the callers of two of them leave while theirs is made."""
    settings = Settings(state=str(tmp_path / "state"))
    tenant = local_tenant(settings)
    service = Service(settings)
    await restore_all(service)
    state = service.saved
    assert state is not None
    home = state.make_home()
    entry = service.sandboxes.add(lambda: service.make_sandbox(tenant, work_dir=home.path), tenant, 600.0, {})
    saved = SavedSandbox("v1", home, lambda: {"asked": {}})
    keep_sandbox(service, entry, saved)
    installed = tmp_path / "installed"
    installed.mkdir()

    async def install(name: str, *, manager: str) -> None:
        (installed / name).write_text("")
        await entry.sandbox.use_packages(str(installed))

    copying, copy = asyncio.Event(), state.keep_packages
    loop = asyncio.get_running_loop()

    def copy_slowly(source: str | None) -> str | None:
        loop.call_soon_threadsafe(copying.set)
        return copy(source)

    monkeypatch.setattr(entry.sandbox, "install", install)
    monkeypatch.setattr(state, "keep_packages", copy_slowly)
    calls = [asyncio.ensure_future(install_packages(service, entry, [name], "pip")) for name in ("a", "b", "c")]
    try:
        for call in calls[:2]:
            await copying.wait()
            copying.clear()
            call.cancel()
        for call in calls:
            with suppress(asyncio.CancelledError):
                await call
        packages = Path(state.path, "packages")
        (kept,) = os.listdir(packages)
        assert kept == saved.packages
        assert sorted(os.listdir(packages / kept)) == ["a", "b", "c"]
    finally:
        await service.sandboxes.aclose()
        await service.aclose()

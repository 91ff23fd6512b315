"""Packages of a sandbox over a restart of a server with `--state`, and variables that need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell.interfaces.serve.app import restore_all
from warmcell.interfaces.serve.saved_sandboxes import SavedSandbox, keep_sandbox, save_packages
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

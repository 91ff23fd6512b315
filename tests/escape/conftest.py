"""One fixture, five invariants: in time, nothing left, memory flat, host canary untouched, next benign run works."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.escape.harness import ON_DEMAND, Belongings, Cage, Canary, check_nothing_left, forget_peak
from tests.escape.weakened import Weakened
from tests.helpers import require
from tests.image_roots import shared_debian_like, shared_place

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import EnforcerUnavailable
from warmcell.core.types import ExecRequest, Language
from warmcell.images import Image


@pytest.fixture(scope="session", autouse=True)
def private_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary directory of our own, so that what Warmcell creates there can be counted."""
    before = tempfile.tempdir
    tempfile.tempdir = str(tmp_path_factory.mktemp("temporary"))
    yield
    tempfile.tempdir = before


#: Their attacks are also made from inside an image.
OVER_IMAGES = {
    "test_fs_privileges",
    "test_fs_reads",
    "test_fs_writes",
    "test_kr_calls",
    "test_pr_proc",
    "test_rx_disk",
    "test_rx_memory",
}


#: These are about the root that is made of the host's system; `test_images.py` has the same for images.
OF_THE_HOSTS_ROOT = {
    "test_generated_accounts_name_nobody_of_the_host",
    "test_nothing_can_be_made_outside_the_workspace",
    "test_var_tmp_is_the_guests_own",
    "test_system_files_cannot_be_changed_in_any_way",
    "test_a_peak_between_two_looks_is_over_the_limit",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module, name = metafunc.module.__name__.rpartition(".")[2], metafunc.definition.originalname
    if "default_backend" in metafunc.fixturenames and module in OVER_IMAGES and name not in OF_THE_HOSTS_ROOT:
        metafunc.parametrize("default_backend", ["host", "image"], indirect=True)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Name it before `cage`: making it takes so long that an idle zygote of the default backend would end."""
    return shared_debian_like(shared_place(tmp_path_factory))


@pytest.fixture(scope="session")
def default_backend(request: pytest.FixtureRequest, private_temporary_directory: None) -> Iterator[ProcessBackend]:
    """A backend with the default isolation class."""
    image = request.getfixturevalue("image") if getattr(request, "param", "host") == "image" else None
    with ProcessBackend(ON_DEMAND, image=image) as backend:
        try:
            isolation = backend.capabilities().isolation_class
        except EnforcerUnavailable as reason:
            require(False, f"no cage works here: {reason}")
        assert isolation == "process+sandbox"
        _benign_run(backend)
        yield backend


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    # Readable for everyone: only the cage keeps the guest from it.
    for directory in (tmp_path, *list(tmp_path.parents)[:3]):
        if directory.name.startswith(("pytest-", "test_")) and directory.stat().st_uid == os.geteuid():
            directory.chmod(0o755)
    return Canary(tmp_path / "canary")


@pytest.fixture
def cage(default_backend: ProcessBackend, canary: Canary) -> Iterator[Cage]:
    """Runs payloads; afterwards the five invariants must hold."""
    gc.collect()
    before = Belongings.now()
    forget_peak()
    with ExitStack() as cleanup:
        yield Cage(default_backend, cleanup, canary)
    gc.collect()
    canary.check()
    check_nothing_left(before)
    _benign_run(default_backend)


@pytest.fixture
def weakened(cage: Cage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Weakened:
    return Weakened(cage, monkeypatch, tmp_path)


def _benign_run(backend: ProcessBackend) -> None:
    assert backend.execute_blocking(ExecRequest(Language.PYTHON, "print(6 * 7)", 10)).stdout == "42\n"

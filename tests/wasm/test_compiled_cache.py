"""The cache of compiled modules: reused, never if a file was changed, never filled by a worker that ran a guest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.wasm import guests

from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.pool import WorkerPool, program_pool
from warmcell.core.types import ExecRequest, ExecResult

HELLO = guests.prints("hello\n")


def _run_once(directory: Path, code: str = HELLO) -> ExecResult:
    """In an unused worker: an idle worker of another test is not clean, so its code would not be cached."""
    program_pool().shed()
    backend = WasmBackend(cache_dir=directory)
    try:
        return backend.execute_blocking(ExecRequest("wasm", code, 20))
    finally:
        backend.close()


def _artefacts(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.signed"))


def test_a_module_is_compiled_once(empty_cache: Path) -> None:
    _run_once(empty_cache)
    (artefact,) = _artefacts(empty_cache)
    inode = artefact.stat().st_ino
    assert _run_once(empty_cache).stdout == "hello\n"
    assert [item.stat().st_ino for item in _artefacts(empty_cache)] == [inode]


def test_only_the_owner_can_read_or_write_it(empty_cache: Path) -> None:
    _run_once(empty_cache)
    assert empty_cache.stat().st_mode & 0o777 == 0o700
    assert (empty_cache / "secret").stat().st_mode & 0o777 == 0o600
    assert _artefacts(empty_cache)[0].stat().st_mode & 0o077 == 0


@pytest.mark.attack("WA-17")
def test_other_code_in_its_place_is_never_run(empty_cache: Path) -> None:
    """Replaces a compiled module by another valid one: without the MAC it would print something else."""
    _run_once(empty_cache)
    (hello,) = _artefacts(empty_cache)
    _run_once(empty_cache, guests.prints("EVIL\n"))
    (evil,) = [item for item in _artefacts(empty_cache) if item != hello]
    os.chmod(hello, 0o600)
    hello.write_bytes(evil.read_bytes())
    assert _run_once(empty_cache).stdout == "hello\n"
    evil.replace(hello)
    assert _run_once(empty_cache).stdout == "hello\n"


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"{}", b'{"facts": {}, "mac": ""}\n', b"[" * 5000])
def test_damage_is_mended(empty_cache: Path, damage: bytes) -> None:
    _run_once(empty_cache)
    (artefact,) = _artefacts(empty_cache)
    artefact.unlink()
    artefact.write_bytes(damage)
    assert _run_once(empty_cache).stdout == "hello\n"


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir(mode=0o777)
    os.chmod(directory, 0o777)
    assert _run_once(directory).stdout == "hello\n"
    assert os.listdir(directory) == []


def test_a_link_in_place_of_the_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("elsewhere")
    assert _run_once(tmp_path / "link").stdout == "hello\n"
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_secret_that_others_can_read_is_refused(empty_cache: Path) -> None:
    _run_once(empty_cache)
    os.chmod(empty_cache / "secret", 0o644)
    before = {item: item.stat().st_mtime_ns for item in empty_cache.iterdir()}
    assert _run_once(empty_cache, guests.prints("other\n")).stdout == "other\n"
    assert {item: item.stat().st_mtime_ns for item in empty_cache.iterdir()} == before


def test_verified_content_cannot_change(empty_cache: Path) -> None:
    from warmcell.backends.wasm.module_loader import ModuleCache

    _run_once(empty_cache)
    cache = ModuleCache(empty_cache)
    compiled = cache.find(_artefacts(empty_cache)[0].stem)
    assert compiled is not None
    with pytest.raises(PermissionError):
        os.pwrite(compiled.descriptor, b"EVIL", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(compiled.descriptor, 0)
    compiled.close()
    cache.close()


def test_what_a_worker_compiled_cannot_change_while_it_is_stored(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that a module took over as it was compiled has the file too. This program maps it."""
    from warmcell.backends.wasm.module_loader import ModuleCache

    stored: list[str] = []

    def store(_cache: ModuleCache, key: str, artefact: int, _facts: dict[str, object]) -> None:
        with pytest.raises(PermissionError):
            os.pwrite(artefact, b"EVIL", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(artefact, 0)
        stored.append(key)

    monkeypatch.setattr(ModuleCache, "store", store)
    assert _run_once(empty_cache).stdout == "hello\n"
    assert len(stored) == 1


def test_only_a_clean_worker_fills_it(empty_cache: Path, no_workers: WorkerPool) -> None:
    backend = WasmBackend(cache_dir=empty_cache, max_workers=1)
    try:
        backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
        kept = _artefacts(empty_cache)
        backend.execute_blocking(ExecRequest("wasm", guests.prints("second\n"), 20))
        assert _artefacts(empty_cache) == kept
    finally:
        backend.close()


def test_a_large_module_gets_a_clean_worker(empty_cache: Path, no_workers: WorkerPool) -> None:
    large = guests.prints("large\n").replace("(memory", "(func (result i64) (i64.const 1)) " * 3000 + "(memory")
    backend = WasmBackend(cache_dir=empty_cache, max_workers=1)
    try:
        backend.execute_blocking(ExecRequest("wasm", HELLO, 20))
        (used,) = backend.worker_pids()
        assert backend.execute_blocking(ExecRequest("wasm", large, 60)).stdout == "large\n"
        assert backend.worker_pids() != [used]
        assert len(_artefacts(empty_cache)) == 2
    finally:
        backend.close()


def test_it_is_kept_small(empty_cache: Path) -> None:
    from warmcell.backends.wasm.module_loader import ModuleCache

    _run_once(empty_cache)
    (artefact,) = _artefacts(empty_cache)
    cache = ModuleCache(empty_cache, most_bytes=artefact.stat().st_size)
    with artefact.open("rb") as compiled:
        for number in range(3):
            cache.store(f"key{number}", compiled.fileno(), {})
    assert len(_artefacts(empty_cache)) == 1
    cache.close()

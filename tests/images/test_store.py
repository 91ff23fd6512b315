"""The life of images in a store: remove, prune, leases, several programs at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import until
from tests.images.image_files import Layout, entry, layer

from warmcell.errors import ExecutionFailed, ImageInvalid, ImageNotFound, InvalidRequest
from warmcell.images import Image, ImageStore
from warmcell.images import layers as layers_module
from warmcell.images import store as store_module
from warmcell.images.blobs import BlobStore
from warmcell.lifetime.held_directories import has_abandoned, hold, swept_directories
from warmcell.workspace import private_directory
from warmcell.workspace import remove as workspace_remove
from warmcell.workspace.private_directory import sweep


def add(store: ImageStore, tmp_path: Path, name: str, *files: str) -> Image:
    """An image with one layer for each file."""
    path = tmp_path / f"layout-{name}"
    return store.import_(Layout([layer(entry(file, file.encode() * 500)) for file in files]).write(path), name)


def trees(store: ImageStore) -> int:
    return len(os.listdir(f"{store.path}/layers"))


def test_remove_keeps_what_other_images_use(store: ImageStore, tmp_path: Path) -> None:
    one, two = add(store, tmp_path, "one", "base", "x"), add(store, tmp_path, "two", "base", "y")
    assert trees(store) == 3
    assert store.remove("one") > 0
    assert [image.name for image in store.list()] == ["two:latest"] and trees(store) == 2
    assert os.path.isdir(two.layer_paths[0]) and not os.path.exists(one.layer_paths[1])
    store.remove("two")
    assert trees(store) == 0 == len(os.listdir(f"{store.path}/blobs")) == len(os.listdir(f"{store.path}/images"))
    with pytest.raises(ImageNotFound):
        store.remove("two")


def test_remove_of_one_name_of_two(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path, "one", "x")
    store.tag("one", "other")
    assert store.remove("one") == 0
    assert store.get("other").digest == image.digest and os.path.isdir(image.layer_paths[0])
    store.tag("other", "third")
    store.remove(image.digest)
    assert store.list() == [] and trees(store) == 0


def test_a_name_that_moves_leaves_an_image_to_prune(store: ImageStore, tmp_path: Path) -> None:
    old = add(store, tmp_path, "app", "x")
    (tmp_path / "layout-app").rename(tmp_path / "old")
    new = add(store, tmp_path, "app", "y")
    assert store.get("app").digest == new.digest != old.digest
    assert store.get(old.digest).layer_paths == old.layer_paths
    assert store.prune() > 0
    with pytest.raises(ImageNotFound):
        store.get(old.digest)
    assert store.prune() == 0


def test_a_leased_image_stays_until_the_lease_ends(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path, "one", "x")
    with store.lease(image):
        store.remove("one")
        store.prune()
        assert store.list() == [] and os.path.isfile(f"{image.layer_paths[0]}/x")
    assert store.prune() > 0
    assert not os.path.exists(image.layer_paths[0])
    with pytest.raises(ImageNotFound):
        store.lease(image)


def test_a_damaged_record_does_not_hide_the_others(store: ImageStore, tmp_path: Path) -> None:
    """As a machine leaves it that lost its power."""
    for name in ("one:1", "two:1"):
        store.import_(Layout([layer(entry(name, b"x"))]).write(tmp_path / name), name)
    records = sorted((Path(store.path) / "names").iterdir())
    for damage in (b"", b"{", b"\xff", b"[" * 100_000):
        records[0].write_bytes(damage)
        assert [image.name for image in store.list()] == ["two:1"]
        with pytest.raises(ImageNotFound):
            store.get("one:1")
    store.import_(tmp_path / "one:1", "one:1")
    assert [image.name for image in store.list()] == ["one:1", "two:1"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", None])
def test_a_damaged_layer_is_named_and_can_be_pruned(store: ImageStore, tmp_path: Path, content: bytes | None) -> None:
    """As a crash of the machine leaves it."""
    image = add(store, tmp_path, "one", "x")
    record = Path(image.layer_paths[0]).parent / "layer.json"
    record.unlink() if content is None else record.write_bytes(content)
    if content is not None:
        with pytest.raises(ImageInvalid, match="damaged"):
            store.import_(tmp_path / "layout-one", "two")
    store.remove("one")
    store.prune()
    assert trees(store) == 0
    assert os.path.isdir(store.import_(tmp_path / "layout-one", "one").layer_paths[0])


def test_a_damaged_image_is_neither_listed_nor_kept(store: ImageStore, tmp_path: Path) -> None:
    damaged, whole = add(store, tmp_path, "one", "base", "x"), add(store, tmp_path, "two", "base", "y")
    Path(store.path, "images", damaged.digest.removeprefix("sha256:"), "image.json").write_bytes(b"")
    assert [image.name for image in store.list()] == ["two:latest"]
    with store.lease(damaged):
        assert store.prune() == 0 and os.path.isdir(damaged.layer_paths[1])
    assert store.prune() > 0 and not os.path.exists(damaged.layer_paths[1])
    assert all(map(os.path.isdir, whole.layer_paths))


def test_two_programs_remove_a_name_at_once(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(store, tmp_path, "one", "x")
    remove_name = store._records.remove_name

    def remove_second(name: str) -> None:
        remove_name(name)  # the other program
        remove_name(name)

    monkeypatch.setattr(store._records, "remove_name", remove_second)
    assert store.remove("one") > 0
    assert store.list() == [] and trees(store) == 0


def test_a_lease_ends_with_its_process(store: ImageStore, tmp_path: Path) -> None:
    image = add(store, tmp_path, "one", "x")
    code = f"from warmcell.images import ImageStore; s = ImageStore({store.path!r}); l = s.lease(s.get('one')); print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        store.remove("one")
        assert os.path.isdir(image.layer_paths[0])
        holder.send_signal(signal.SIGKILL)
    store.prune()
    assert not os.path.exists(image.layer_paths[0])


def test_an_import_in_progress_keeps_prune_away(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, tmp_path, "one", "x")
    other = hold(store.path, is_shared=True)
    assert other is not None
    monkeypatch.setattr(store_module, "_PATIENCE_SECONDS", 0.1)
    store.remove("one")  # not an error: the next prune removes the files
    assert store.list() == [] and trees(store) == 1
    with pytest.raises(ExecutionFailed, match="adding"):
        store.prune()
    other.release()
    assert store.prune() > 0 and trees(store) == 0


@pytest.mark.parametrize("is_pruned", [False, True])
def test_others_may_add_while_the_files_of_a_layer_are_removed(
    store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_pruned: bool
) -> None:
    """A layer may have a million files, and a program that adds an image waits for a minute."""
    add(store, tmp_path, "one", "x")
    may_add: list[bool] = []

    def remove(path: str) -> None:
        other = hold(store.path, is_shared=True)
        may_add.append(other is not None)
        if other is not None:
            other.release()
        workspace_remove.remove_directory(path)

    for module in (layers_module, private_directory):
        monkeypatch.setattr(module, "remove_directory", remove)
    if is_pruned:
        store._records.remove_name("one:latest")
    assert (store.prune() if is_pruned else store.remove("one")) > 0
    assert may_add == [True] and trees(store) == 0


def test_what_a_killed_import_left_is_pruned(store: ImageStore, tmp_path: Path) -> None:
    """Killed while it unpacks: the layer is not there, and the next prune leaves nothing."""
    path = Layout([layer(*(entry(f"f{number}", b"x") for number in range(200)))]).write(tmp_path / "l")
    code = (
        "import os, sys, time\nfrom warmcell.images import ImageStore, unpack\n"
        "real = unpack.Unpacker.add\n"
        "def add(self, entry, reader):\n    real(self, entry, reader)\n"
        "    if entry.path[0] == b'f100': print(1, flush=True); time.sleep(600)\n"
        f"unpack.Unpacker.add = add\nImageStore({store.path!r}).import_({str(path)!r}, 'x')"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with killed:
        assert killed.stdout is not None and killed.stdout.readline() == b"1\n"
        assert trees(store) == 1
        killed.kill()
    store.prune()
    assert trees(store) == 0 == len(os.listdir(f"{store.path}/blobs"))
    assert len(os.listdir(store.import_(path, "x").layer_paths[0])) == 200


def test_a_sweep_removes_the_blobs_of_killed_programs_only(store: ImageStore) -> None:
    blobs = BlobStore(f"{store.path}/blobs")
    code = (
        "import os, signal\nfrom warmcell.images.blobs import BlobStore\n"
        f"writer = BlobStore({blobs.path!r}).writer()\nwriter.write(b'x')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    with blobs.writer() as writer:
        writer.write(b"written")
        assert len(blobs.files()) == 2
        store.sweep()
        assert len(blobs.files()) == 1
        digest = writer.commit()
    store.sweep()
    assert [entry.path for entry in blobs.files()] == [blobs.path_of(digest)]
    assert Path(blobs.path_of(digest)).read_bytes() == b"written"


def test_programs_that_import_and_remove_at_once(store: ImageStore, tmp_path: Path) -> None:
    paths = [
        Layout([layer(entry("base", b"b" * 9000)), layer(entry(f"own{number}"))]).write(tmp_path / str(number))
        for number in range(2)
    ]
    code = (
        "import sys\nfrom warmcell.images import ImageStore\n"
        f"store = ImageStore({store.path!r})\n"
        "for turn in range(15):\n"
        "    image = store.import_(sys.argv[1], sys.argv[2])\n"
        "    with store.lease(image):\n"
        "        assert open(image.layer_paths[0] + '/base').read() == 'b' * 9000\n"
        "    store.remove(sys.argv[2])\n"
    )
    programs = [
        subprocess.Popen([sys.executable, "-c", code, str(path), f"n{index}"], stderr=subprocess.PIPE)
        for index, path in enumerate([*paths, paths[0]])
    ]
    for program in programs:
        _, errors = program.communicate(timeout=240)
        assert program.returncode == 0, errors.decode()
    store.prune()
    assert store.list() == [] and trees(store) == 0


def test_threads_import_the_same_image(store: ImageStore, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    path = Layout([layer(entry("x", b"x" * 100_000))]).write(tmp_path / "l")
    with ThreadPoolExecutor(4) as threads:
        images = list(threads.map(lambda name: store.import_(path, name), ["a", "b", "c", "d"]))
    assert len({image.layer_paths for image in images}) == 1 and trees(store) == 1
    until(lambda: len(store.list()) == 4)


def test_the_next_program_removes_what_a_killed_one_was_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = Path(ImageStore().path, "layers/.unpack-x/tree")
    left.mkdir(parents=True)
    (left / "closed").mkdir(mode=0o000)
    assert has_abandoned()
    for parent, prefixes in swept_directories():
        if str(tmp_path) in parent:
            sweep(parent, prefixes)
    assert os.listdir(f"{ImageStore().path}/layers") == []


def test_a_store_of_another_user_is_refused(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(store_module.os, "geteuid", lambda: uid + 1)
    with pytest.raises(InvalidRequest, match="another user"):
        store.prune()

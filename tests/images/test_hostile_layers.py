"""Layers that attack the host: tamed or refused with a typed error, nothing written elsewhere, nothing half done.

Each import has a canary beside the store. Payloads are finite and harmless even where everything fails.
"""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import os
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.images.image_files import (
    CONFIG,
    INDEX,
    LAYER,
    MANIFEST,
    Layout,
    digest_of,
    directory,
    docker_archive,
    entry,
    hardlink,
    layer,
    symlink,
)

from warmcell.core.errors import BackendUnavailable
from warmcell.errors import ImageInvalid
from warmcell.images import Image, ImageLimits, ImageStore
from warmcell.images import decompress as decompress_module
from warmcell.images.blobs import BlobStore
from warmcell.images.build import copy
from warmcell.images.decompress import LayerReader
from warmcell.images.layers import MergingUnpacker
from warmcell.images.limits import Budget
from warmcell.images.unpack import Unpacker

pytestmark = pytest.mark.claim("WC-IM-4")
Entries = list[tuple[tarfile.TarInfo, bytes]]


def import_layers(store: ImageStore, tmp_path: Path, *layers: bytes, **options: Any) -> Image:
    return store.import_(Layout(list(layers), **options).write(tmp_path / "layout"), "hostile")


def contents(path: Path) -> dict[str, tuple[int, bytes]]:
    """Everything beneath a directory."""
    return {
        str(found.relative_to(path)): (found.lstat().st_mode, found.read_bytes() if found.is_file() else b"")
        for found in sorted(path.rglob("*"))
    }


def assert_nothing_is_left(store: ImageStore) -> None:
    assert store.list() == []
    store.prune()
    left = [name for name in contents(Path(store.path)) if "/" in name]
    assert left == []


def pax(name: str, **records: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, pax_headers=records)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """What an escape would find: a file and a directory outside the store."""
    place = tmp_path / "canary"
    (place / "directory").mkdir(parents=True)
    (place / "file").write_text("alive")
    return place


def escapes(canary: Path) -> dict[str, Entries]:
    return {
        "dots": [entry("../../../../canary/file", b"dead")],
        "dots inside": [directory("a"), entry("a/../../x", b"dead")],
        "dots at the end": [directory("a/..")],
        "long name with dots": [entry("a/" * 60 + "../" * 70 + "x", b"dead")],
        "hard link out": [hardlink("x", str(canary / "file"))],
        "hard link with dots": [hardlink("x", "../../../../canary/file")],
        "hard link through a link": [symlink("d", str(canary)), hardlink("x", "d/file")],
        "hard link to itself": [entry("x", b"1"), hardlink("x", "x")],
        "hard link to a directory": [directory("d"), hardlink("x", "d")],
        "hard link to a whiteout": [entry(".wh.gone"), hardlink("x", "gone")],
        "hard link to nothing": [hardlink("x", "")],
        "below a dangling link": [symlink("d", str(canary)), entry("d/file", b"dead")],
        "below a circle": [symlink("a", "b"), symlink("b", "a"), entry("a/x", b"dead")],
        "below a file": [entry("f", b"1"), entry("f/x", b"2")],
        "below a device": [entry("f", kind=tarfile.CHRTYPE), entry("f/x", b"2")],
        "below a whiteout": [entry(".wh.f"), entry("f/x", b"2")],
        "file over a full directory": [directory("d"), entry("d/x"), entry("d", b"1")],
        "link over a full directory": [directory("d"), entry("d/x"), symlink("d", str(canary))],
        "whiteout of dots": [entry(".wh...")],
        "whiteout of the directory": [entry("a/.wh..")],
        "whiteout of nothing": [entry("a/.wh.")],
        "root that is a file": [entry("./", b"", kind=tarfile.SYMTYPE, link="/")],
        "null in a name": [pax("x", path="a\0b")],
        "global header": [entry("x", b"1", kind=tarfile.XGLTYPE)],
        "long path": [entry("x/" * 2100 + "y", b"1")],
        "long name": [entry("x" * 256, b"1")],
        "long link": [symlink("x", "y" * 5000)],
        "empty link": [symlink("x", "")],
        "unknown type": [entry("x", b"1", kind=b"Z")],
        "sparse": [entry("x", b"1", kind=tarfile.GNUTYPE_SPARSE)],
        "sparse by pax": [pax("x", **{"GNU.sparse.major": "1", "GNU.sparse.realsize": str(1 << 42)})],
        "size by pax": [pax("x", size=str(1 << 50))],
        "negative size by pax": [pax("x", size="-1")],
        "owner by pax": [pax("x", uid=str(1 << 32))],
        "null in a symbolic link": [entry("x", kind=tarfile.SYMTYPE, pax_headers={"linkpath": "a\0b"})],
        "null in a hard link": [entry("a"), entry("x", kind=tarfile.LNKTYPE, pax_headers={"linkpath": "a\0b"})],
        "many records": [pax("x", **{f"k{number}": "" for number in range(2000)})],
        "many headers": [entry("x", b"6 a=b\n", kind=tarfile.XGLTYPE)] * 20,
    }


@pytest.mark.parametrize("name", sorted(escapes(Path("/canary"))))
def test_escapes_are_refused(store: ImageStore, tmp_path: Path, canary: Path, name: str) -> None:
    before = contents(canary)
    entries = escapes(canary)[name]
    form = tarfile.PAX_FORMAT if any(info.pax_headers for info, _ in entries) else tarfile.GNU_FORMAT
    data = layer(*entries, form=form)
    if name == "global header":  # tarfile does not write what we want to read
        data = data.replace(b"1" + b"\0" * 511, b"12 path=/ab\n".ljust(512, b"\0"))
    if name == "size by pax" or name == "negative size by pax":
        assert b"size=" in data
    with pytest.raises(ImageInvalid):
        import_layers(store, tmp_path, data)
    assert contents(canary) == before
    assert_nothing_is_left(store)


def test_links_may_point_anywhere_and_are_not_followed(store: ImageStore, tmp_path: Path, canary: Path) -> None:
    """An absolute link is resolved in the guest's root, and by us only in the layer."""
    inside = str(canary).lstrip("/")
    data = layer(
        directory(inside),
        symlink("d", str(canary)),
        symlink("up", "../../.."),
        entry("d/file", b"x"),
        entry("up/top", b"y"),
    )
    [tree] = import_layers(store, tmp_path, data).layer_paths
    assert Path(tree, inside, "file").read_bytes() == b"x" and Path(tree, "top").read_bytes() == b"y"
    assert (canary / "file").read_text() == "alive" and sorted(os.listdir(canary)) == ["directory", "file"]


def test_an_entry_replaces_a_link_and_does_not_write_through_it(
    store: ImageStore, tmp_path: Path, canary: Path
) -> None:
    target = str(canary / "file")
    data = layer(
        symlink("a", target), entry("a", b"own"), symlink("b", str(canary)), directory("b"), entry("b/file", b"own"),
        entry("c", b"old"), symlink("c", target), directory("e"), symlink("e", target), symlink("f", "g"), hardlink("f2", "f"),
    )  # fmt: skip
    [tree] = import_layers(store, tmp_path, data).layer_paths
    assert (canary / "file").read_text() == "alive"
    assert Path(tree, "a").read_bytes() == b"own" == Path(tree, "b/file").read_bytes()
    assert os.readlink(f"{tree}/c") == target == os.readlink(f"{tree}/e")
    assert os.readlink(f"{tree}/f2") == "g"


def test_a_hard_link_to_a_lower_layer_is_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ImageInvalid, match="does not have"):
        import_layers(store, tmp_path, layer(entry("file", b"x")), layer(hardlink("link", "file")))
    assert_nothing_is_left(store)


def test_devices_and_set_id_bits_are_tamed(store: ImageStore, tmp_path: Path) -> None:
    data = layer(
        entry("dev/mem", kind=tarfile.CHRTYPE, devmajor=1, devminor=1),
        entry("dev/sda", kind=tarfile.BLKTYPE, devmajor=8),
        entry("dev/whiteout", kind=tarfile.CHRTYPE),
        entry("pipe", kind=tarfile.FIFOTYPE),
        entry("su", b"#!", mode=0o6755, uid=0, gid=42, uname="root"),
        directory("games", 0o7777),
    )
    image = import_layers(store, tmp_path, data)
    [tree] = image.layer_paths
    for name in ("dev/mem", "dev/sda", "dev/whiteout", "pipe"):
        found = os.lstat(f"{tree}/{name}")
        assert stat.S_ISREG(found.st_mode) and found.st_size == 0
    assert stat.S_IMODE(os.lstat(f"{tree}/su").st_mode) == 0o755
    assert stat.S_IMODE(os.lstat(f"{tree}/games").st_mode) == 0o1777
    assert store.owners(image)[0] == {"su": (0, 42, 0o6755), "games": (0, 0, 0o7777)}


def test_attributes_that_overlayfs_obeys_are_not_kept(store: ImageStore, tmp_path: Path) -> None:
    names = ("user.overlay.redirect", "user.overlay.opaque", "user.overlay.metacopy", "security.capability")
    made, _ = directory("d")
    made.pax_headers = {f"SCHILY.xattr.{name}": "/" for name in names}
    [tree] = import_layers(store, tmp_path, layer((made, b""), form=tarfile.PAX_FORMAT)).layer_paths
    assert os.listxattr(f"{tree}/d") == []


def test_odd_names_are_kept(store: ImageStore, tmp_path: Path) -> None:
    names = ["new\nline", "\x1b[31m", "-rf", "back\\slash", "ünïcode", "\udcff\udcfe", " ", "\u202etxt"]
    for form, where in ((tarfile.GNU_FORMAT, "gnu"), (tarfile.PAX_FORMAT, "pax")):
        data = layer(*(entry(name, b"x") for name in names), form=form)
        [tree] = store.import_(Layout([data]).write(tmp_path / where), where).layer_paths
        assert sorted(os.listdir(os.fsencode(tree))) == sorted(os.fsencode(name) for name in names)
    with pytest.raises(ImageInvalid) as caught:
        import_layers(store, tmp_path, layer(entry("a\n\x1b[31m\udcff/../x", b"")))
    assert caught.value.message.isprintable()


def whiteout_kind(path: str) -> bool:
    found = os.lstat(path)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_opaque(path: str) -> bool:
    return os.getxattr(path, "user.overlay.opaque") == b"y" if os.listxattr(path) else False


def test_whiteouts_become_what_overlayfs_wants(store: ImageStore, tmp_path: Path) -> None:
    data = layer(
        entry("etc/.wh.gone"),
        entry("opt/.wh..wh..opq"),
        entry("var/.wh..wh.plnk"),
        # Whiteouts hide lower layers only, whatever the order.
        entry("kept", b"1"), entry(".wh.kept"), entry(".wh.kept2"), entry("kept2", b"2"),
        directory("d"), entry("d/x"), entry(".wh.d"), entry(".wh.d2"), directory("d2"), entry("d2/x"),
        entry(".wh.twice"), entry(".wh.twice"),
    )  # fmt: skip
    [tree] = import_layers(store, tmp_path, data).layer_paths
    assert whiteout_kind(f"{tree}/etc/gone") and whiteout_kind(f"{tree}/twice")
    assert [is_opaque(f"{tree}/{name}") for name in ("opt", "d", "d2", "etc")] == [True, True, True, False]
    assert os.listdir(f"{tree}/var") == [] and os.listdir(f"{tree}/d") == ["x"]
    assert Path(tree, "kept").read_bytes() == b"1" and Path(tree, "kept2").read_bytes() == b"2"


@pytest.mark.parametrize("compress", [False, True])
def test_bombs_are_stopped(tmp_path: Path, compress: bool) -> None:
    limits = ImageLimits(unpacked_bytes=1 << 20, entries=100)
    store = ImageStore(tmp_path / "store", limits=limits)
    with pytest.raises(ImageInvalid, match="1048576 bytes"):
        import_layers(store, tmp_path, layer(entry("zeros", bytes(4 << 20))), compress=compress)
    assert_nothing_is_left(store)
    for name, entries in {
        "files": [entry(str(number)) for number in range(101)],
        "directories of one path": [entry("d/" * 101 + "x")],
        "the same again": [entry("x")] * 101,
    }.items():
        with pytest.raises(ImageInvalid, match="more than 100 entries"):
            store.import_(Layout([layer(*entries)], compress=compress).write(tmp_path / name), "n")
        assert_nothing_is_left(store)


def test_limits_count_all_layers(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "store", limits=ImageLimits(unpacked_bytes=1 << 20))
    layers = [layer(entry(f"f{number}", bytes(1 << 18))) for number in range(5)]
    with pytest.raises(ImageInvalid, match="1048576 bytes"):
        import_layers(store, tmp_path, *layers)
    assert_nothing_is_left(store)


def test_paths_are_bounded_in_sum(tmp_path: Path) -> None:
    """They are kept in memory while an image is unpacked, and compress well."""
    store = ImageStore(tmp_path / "store", limits=ImageLimits(name_bytes=20_000))
    long = "/".join(["d" * 200] * 10)
    hostile = layer(*(entry(f"{long}/{number}", uid=1) for number in range(20)))
    (tmp_path / "root.tar").write_bytes(hostile)
    for source in (Layout([hostile]).write(tmp_path / "layout"), tmp_path / "root.tar"):
        with pytest.raises(ImageInvalid, match="20000 bytes"):
            store.import_(source, "hostile")
    assert_nothing_is_left(store)


@pytest.mark.parametrize("is_merged", [False, True])
def test_parents_that_no_entry_lists_count_as_paths(tmp_path: Path, is_merged: bool) -> None:
    """A path of 4 KB has 2,000 of them, and a merged layer keeps each in memory: 16 MB for one entry."""
    tree, budget = tmp_path / "tree", Budget(ImageLimits(name_bytes=20_000))
    tree.mkdir()
    data = layer(entry("d/" * 200 + "x"))
    unpacker = (MergingUnpacker if is_merged else Unpacker)(str(tree), budget)
    with pytest.raises(ImageInvalid, match="20000 bytes"):
        unpacker.unpack(LayerReader(iter([data]), budget, len(data)))


@pytest.mark.parametrize("size", [1 << 57, 1 << 80])
def test_sizes_that_no_file_has(store: ImageStore, tmp_path: Path, size: int) -> None:
    """In an archive, where content is skipped by its size, and in a layer, where it is read."""
    plain = bytearray(layer(entry("x")))
    plain[124:136] = b"\x80" + size.to_bytes(11, "big")
    plain[148:156] = b" " * 8
    plain[148:156] = b"%06o\0 " % sum(plain[:512])
    (tmp_path / "root.tar").write_bytes(plain)
    for source in (Layout([bytes(plain)]).write(tmp_path / "layout"), tmp_path / "root.tar"):
        with pytest.raises(ImageInvalid):
            store.import_(source, "hostile")
    assert_nothing_is_left(store)


def test_a_layer_that_expands_too_far(tmp_path: Path) -> None:
    limits = ImageLimits(ratio=50, ratio_from_bytes=1 << 20)
    store = ImageStore(tmp_path / "store", limits=limits)
    with pytest.raises(ImageInvalid, match="50 times"):
        import_layers(store, tmp_path, layer(entry("zeros", bytes(4 << 20))), compress=True)
    packed = tmp_path / "root.tar.gz"
    packed.write_bytes(gzip.compress(layer(entry("zeros", bytes(4 << 20)))))
    with pytest.raises(ImageInvalid, match="50 times"):
        store.import_(packed, "x")
    assert_nothing_is_left(store)


def test_a_large_hole_is_not_read(tmp_path: Path, store: ImageStore) -> None:
    """A root tar that claims content far past its end, and one that is a large hole."""
    claims = tmp_path / "claims.tar"
    header = bytearray(layer(entry("x", b"1"))[:512])
    header[124:136] = b"\x80" + (1 << 26).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    claims.write_bytes(bytes(header))
    with pytest.raises(ImageInvalid, match="truncated"):
        store.import_(claims, "x")
    with claims.open("r+b") as file:
        file.truncate((1 << 26) + 4096)
    with pytest.raises(ImageInvalid, match="unpacks to more than"):
        small = ImageStore(store.path, limits=ImageLimits(unpacked_bytes=1 << 20))
        small.import_(claims, "x", on_progress=pytest.fail)
    assert_nothing_is_left(store)


def test_a_blob_is_what_its_manifest_states(tmp_path: Path) -> None:
    """Whatever checks come later."""
    blobs = BlobStore(str(tmp_path / "blobs"))
    for data, stated in ((b"b", digest_of(b"a")), (b"aa", digest_of(b"a")), (b"", digest_of(b"a"))):
        with pytest.raises(ImageInvalid):
            blobs.put([data], stated)
        with pytest.raises(ImageInvalid):
            blobs.put([data], digest_of(data), 7)
    chunks = itertools.repeat(b"x", 5000)
    with pytest.raises(ImageInvalid, match="longer"):
        blobs.put(chunks, digest_of(b""), 1000)
    assert len(list(chunks)) == 3999  # read no further than stated
    assert os.listdir(blobs.path) == []
    assert blobs.put([b"a"], digest_of(b"a"), 1) == (digest_of(b"a"), 1)


def layouts_with_damage() -> dict[str, tuple[Layout, Any]]:
    """Name to layout and index."""
    good = layer(entry("x", b"x" * 2000))

    def make(compress: bool = False) -> Layout:
        return Layout([good], compress=compress)

    found: dict[str, tuple[Layout, Any]] = {}
    for name, change in {
        "digest": lambda data: data[:-1] + b"!",
        "short": lambda data: data[:700],
        "long": lambda data: data + bytes(512),
        "empty": lambda data: b"",
    }.items():
        layout = make()
        digest = layout.manifest["layers"][0]["digest"]  # type: ignore[index]
        layout.blobs[digest] = change(layout.blobs[digest])
        found[f"blob: {name}"] = (layout, None)
    packed = gzip.compress(good, mtime=0)
    for name, data in {
        "gzip cut short": packed[:-30],
        "gzip with a bad sum": packed[:-8] + bytes(8),
        "gzip of nothing": packed[:10],
        "deflate garbage": packed[:10] + zlib.compress(b"x") + b"\xff" * 64,
        "not a tar": b"hello" * 300,
        "zstd garbage": struct.pack("<I", 0xFD2FB528) + b"\xff" * 600,
        "cut in a header": good[:300],
        "cut in content": good[:1000],
        "bad checksum": good[:100] + b"9" + good[101:],
    }.items():
        layout = make()
        layout.manifest["layers"] = [layout.add(data, LAYER)]
        found[f"layer: {name}"] = (layout, None)
    layout = make()
    layout.manifest["config"] = layout.add_json(
        layout.config | {"rootfs": {"type": "layers", "diff_ids": [digest_of(b"other")]}}, CONFIG
    )
    found["diff_id of another layer"] = (layout, None)
    return found | wrong_documents(make)


def wrong_documents(make: Any) -> dict[str, tuple[Layout, Any]]:
    found: dict[str, tuple[Layout, Any]] = {}
    changes: dict[str, dict[str, Any]] = {
        "schema 1": {"schemaVersion": 1},
        "no layers": {"layers": None},
        "layers that are none": {"layers": [1]},
        "no config": {"config": None},
        "config of an artifact": {"config": {"mediaType": "application/vnd.helm", "digest": digest_of(b""), "size": 0}},
        "layer of an artifact": {"layers": [{"mediaType": "application/wasm", "digest": digest_of(b""), "size": 0}]},
        "digest that is a path": {"layers": [{"mediaType": LAYER, "digest": "sha256:../../x", "size": 1}]},
        "digest of another kind": {"layers": [{"mediaType": LAYER, "digest": "md5:" + "0" * 32, "size": 1}]},
        "negative size": {"layers": [{"mediaType": LAYER, "digest": digest_of(b""), "size": -1}]},
        "size that is true": {"layers": [{"mediaType": LAYER, "digest": digest_of(b""), "size": True}]},
        "missing blob": {"layers": [{"mediaType": LAYER, "digest": digest_of(b"absent"), "size": 6}]},
        "too many layers": {"layers": [{"mediaType": LAYER, "digest": digest_of(b""), "size": 0}] * 200},
    }
    for name, change in changes.items():
        layout = make()
        layout.manifest |= change
        found[f"manifest: {name}"] = (layout, None)
    for name, change in {
        "env": {"config": {"Env": [1]}},
        "cmd": {"config": {"Cmd": "sh"}},
        "config": {"config": [1]},
        "workdir": {"config": {"WorkingDir": "a\0b"}},
        "labels": {"config": {"Labels": {"a": 1}}},
        "volumes": {"config": {"Volumes": ["/data"]}},
        "rootfs": {"rootfs": None},
        "windows": {"os": "windows"},
        "too few diff_ids": {"rootfs": {"diff_ids": []}},
    }.items():
        layout = make()
        layout.manifest["config"] = layout.add_json(layout.config | change, CONFIG)
        found[f"config: {name}"] = (layout, None)
    for name, index in {
        "empty": {"schemaVersion": 2, "manifests": []},
        "list": [],
        "deep": json.loads("[" * 500 + "]" * 500),
        "of an artifact": {"manifests": [{"mediaType": "text/plain", "digest": digest_of(b""), "size": 0}]},
        "large": {"manifests": [{"mediaType": MANIFEST, "digest": digest_of(b""), "size": 1 << 40}]},
        "itself": {"manifests": [{"mediaType": INDEX, "digest": digest_of(b"x"), "size": 1}]},
    }.items():
        found[f"index: {name}"] = (make(), index)
    return found


@pytest.mark.parametrize("name", sorted(layouts_with_damage()))
def test_damaged_images_leave_nothing(store: ImageStore, tmp_path: Path, name: str) -> None:
    layout, index = layouts_with_damage()[name]
    with pytest.raises(ImageInvalid) as caught:
        store.import_(layout.write(tmp_path / "l", index), "x")
    assert caught.value.message.isprintable()
    assert_nothing_is_left(store)


def test_indexes_nested_without_end(store: ImageStore, tmp_path: Path) -> None:
    layout = Layout([layer(entry("x"))])
    inner = layout.add_json(layout.manifest, MANIFEST)
    for _ in range(10):
        inner = layout.add_json({"schemaVersion": 2, "manifests": [inner]}, INDEX)
    with pytest.raises(ImageInvalid, match="nested"):
        store.import_(layout.write(tmp_path / "l", {"manifests": [inner]}), "x")
    assert_nothing_is_left(store)


def test_links_in_a_layout_are_not_followed(store: ImageStore, tmp_path: Path, canary: Path) -> None:
    path = Layout([layer(entry("x"))]).write(tmp_path / "l")
    secret = (canary / "file").read_bytes()
    blob = path / "blobs/sha256" / digest_of(secret).partition(":")[2]
    blob.symlink_to(canary / "file")
    (path / "index.json").write_text(
        json.dumps({"manifests": [{"mediaType": MANIFEST, "digest": digest_of(secret), "size": len(secret)}]})
    )
    with pytest.raises(ImageInvalid, match="no file"):
        store.import_(path, "x")
    (path / "index.json").unlink()
    (path / "index.json").symlink_to(canary / "file")
    with pytest.raises(ImageInvalid, match="no file"):
        store.import_(path, "x")
    assert_nothing_is_left(store)


@pytest.mark.parametrize(
    "manifest",
    [
        {}, [], [1], [{}], [{"Config": "c", "Layers": ["missing"]}], [{"Config": "../../etc/passwd", "Layers": []}],
        [{"Config": "/etc/passwd", "Layers": []}], [{"Config": "a", "Layers": []}], [{"Config": 1, "Layers": []}],
        [{"Config": "c", "Layers": ["dangling"]}], [{"Config": "c", "Layers": ["x"] * 200}],
        [{"Config": "c", "Layers": [], "RepoTags": 1}],
    ],
)  # fmt: skip
def test_wrong_archives_of_docker_save(store: ImageStore, tmp_path: Path, manifest: Any) -> None:
    path = tmp_path / "saved.tar"
    circle = [symlink("a", "b"), symlink("b", "a"), symlink("dangling", "../../../etc/passwd"), entry("c", b"{}")]
    path.write_bytes(layer(*circle, entry("manifest.json", json.dumps(manifest).encode())))
    with pytest.raises(Exception) as caught:
        store.import_(path, "x")
    assert getattr(caught.value, "fault", None) == "caller"
    assert_nothing_is_left(store)


def test_links_within_an_archive_are_followed(store: ImageStore, tmp_path: Path) -> None:
    """Older versions of Docker write a layer that occurs twice as a link."""
    data = layer(entry("x", b"x"))
    path = docker_archive(tmp_path / "saved.tar", [data, data], ["a:1"])
    with tarfile.open(path) as archive:
        members = [(info, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]
    changed = [
        symlink(info.name, "../0/layer.tar") if info.name == "1/layer.tar" else (info, data) for info, data in members
    ]
    path.write_bytes(layer(*changed))
    image = store.import_(path)
    assert [os.listdir(path) for path in image.layer_paths] == [["x"]]


def test_zstd(store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    layout = Layout([data := layer(entry("x", b"x" * 5000))])
    layout.manifest["layers"] = [layout.add(zstandard.compress(data), LAYER + "+zstd")]
    path = layout.write(tmp_path / "l")
    monkeypatch.setattr(decompress_module, "optional", lambda module: None)
    with pytest.raises(BackendUnavailable, match="zstandard"):
        store.import_(path, "x")
    assert_nothing_is_left(store)
    monkeypatch.undo()
    [tree] = store.import_(path, "x").layer_paths
    assert Path(tree, "x").stat().st_size == 5000


def test_several_gzip_members(store: ImageStore, tmp_path: Path) -> None:
    layout = Layout([data := layer(entry("x", b"x" * 5000))])
    layout.manifest["layers"] = [layout.add(gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(16), LAYER)]
    [tree] = store.import_(layout.write(tmp_path / "l"), "x").layer_paths
    assert Path(tree, "x").stat().st_size == 5000


def test_compressed_members_without_content_are_few(store: ImageStore, tmp_path: Path) -> None:
    """They take time, and no limit on bytes sees them."""
    whole = gzip.compress(layer(entry("x")))
    path = tmp_path / "root.tar.gz"
    path.write_bytes(gzip.compress(b"") * 500 + whole)
    assert store.import_(path, "some").layer_paths
    for content in (b"", b"x", b"x" * 400):
        path.write_bytes(whole + gzip.compress(content) * 20_000)
        with pytest.raises(ImageInvalid, match="more than 1000 small"):
            store.import_(path, "many")


def test_zstd_frames_without_content_are_few(store: ImageStore, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    whole, path = zstandard.compress(layer(entry("x"))), tmp_path / "root.tar.zst"
    path.write_bytes(whole + zstandard.compress(b"") * 200)
    assert store.import_(path, "some").layer_paths
    for frame in (zstandard.compress(b""), b"\x50\x2a\x4d\x18" + bytes(4)):
        path.write_bytes(whole + frame * 200_000)
        with pytest.raises(ImageInvalid, match="nearly empty"):
            store.import_(path, "many")


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress])
def test_archives_in_several_members_are_read_whole(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    """As pbzip2 writes them: the rest must not be lost without a word."""
    archive, path = layer(entry("first", b"1" * 5000), entry("second", b"2")), tmp_path / "x"
    path.write_bytes(
        b"".join(compress(archive[start : start + 1024]) for start in range(0, len(archive), 1024)) + b"\0" * 8
    )
    with path.open("rb") as stream:
        assert b"".join(copy._decompress(stream)) == archive
    path.write_bytes(compress(b"") * 2000)
    with path.open("rb") as stream, pytest.raises(ImageInvalid, match="more than 1000 small"):
        list(copy._decompress(stream))
    path.write_bytes(compress(archive)[:-3])
    with path.open("rb") as stream, pytest.raises(ImageInvalid, match="truncated"):
        list(copy._decompress(stream))

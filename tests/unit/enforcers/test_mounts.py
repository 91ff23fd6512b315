"""Policy paths as mounts: resolved, ordered, and refused where they could not mean what they say."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import PolicyViolation
from warmcell.enforcers.host_paths import HostPath, follow
from warmcell.enforcers.layout import Mount, resolver_mounts, system_layout
from warmcell.enforcers.mounts import check_target, resolve_mounts
from warmcell.policy.model import AccessMode, AllowedPath
from warmcell.policy.places import canonical_target

LINKS = (("/bin", "usr/bin"), ("/lib", "usr/lib"))


def resolve(*paths: AllowedPath, system: tuple[Mount, ...] = ()) -> tuple[Mount, ...]:
    return resolve_mounts(paths, system, LINKS)


def test_parents_before_children_whatever_the_order(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    paths = [AllowedPath(str(path)) for path in (deep, tmp_path, deep.parent)]
    assert [mount.target for mount in resolve(*paths)] == [str(tmp_path), str(deep.parent), str(deep)]


def test_links_are_followed_for_the_source_only(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    [mount] = resolve(AllowedPath(str(tmp_path / "link"), AccessMode.READ_WRITE, "/data"))
    assert mount == Mount(str(tmp_path / "real"), "/data", writable=True)


@pytest.mark.attack("S2-23")
def test_a_path_that_is_replaced_while_it_is_resolved_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that runs in the directory around it may put a link there after links were looked for."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "out").mkdir()

    def follow_and_lose(path: str) -> HostPath:
        found = follow(path)
        (tmp_path / "out").rmdir()
        (tmp_path / "out").symlink_to("secrets")
        return found

    monkeypatch.setattr("warmcell.enforcers.mounts.follow", follow_and_lose)
    with pytest.raises(PolicyViolation, match="was replaced"):
        resolve(AllowedPath(str(tmp_path / "out")))


def test_missing_dangling_and_circular_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").touch()
    for name in ("nowhere", "dangling", "circle", "file/below"):
        with pytest.raises(PolicyViolation, match="cannot be allowed") as caught:
            resolve(AllowedPath(str(tmp_path / name)))
        assert name in str(caught.value)


@pytest.mark.attack("NW-04")
def test_sockets_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "fifo", tmp_path / "socket", Path("/dev/null")):
            with pytest.raises(PolicyViolation, match="neither a file nor a directory"):
                resolve(AllowedPath(str(path), guest_path="/data"))


@pytest.mark.parametrize("target", ["/", "/proc", "/proc/self", "/dev", "/dev/shm", "/sys/fs"])
def test_the_cages_own_places_are_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyViolation):
        resolve(AllowedPath(str(tmp_path), guest_path=target))


@pytest.mark.parametrize("target", ["/process", "/device", "/data", "/srv/proc"])
def test_places_that_only_sound_alike_are_not(target: str) -> None:
    check_target(target)


def test_the_whole_root_is_refused_wherever_it_would_go() -> None:
    with pytest.raises(PolicyViolation, match="'/' cannot be allowed"):
        resolve(AllowedPath("/", guest_path="/host"))


def test_a_file_and_its_directory_can_both_be_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mounts = resolve(AllowedPath(str(tmp_path)), AllowedPath(str(tmp_path / "file"), AccessMode.READ_WRITE))
    assert [mount.writable for mount in mounts] == [False, True]


def test_a_mount_inside_another_needs_a_real_place_there(tmp_path: Path) -> None:
    for name in ("outer", "inner"):
        (tmp_path / name).mkdir()
    outer = AllowedPath(str(tmp_path / "outer"), AccessMode.READ_WRITE, "/data")
    inner = AllowedPath(str(tmp_path / "inner"), guest_path="/data/inner")
    with pytest.raises(PolicyViolation, match="no suitable mount point"):
        resolve(outer, inner)
    assert not (tmp_path / "outer" / "inner").exists()
    (tmp_path / "outer" / "inner").mkdir()
    assert len(resolve(outer, inner)) == 2


@pytest.mark.attack("FS-03")
def test_a_link_that_a_guest_planted_is_not_a_mount_point(tmp_path: Path) -> None:
    for name in ("outer", "inner", "victim"):
        (tmp_path / name).mkdir()
    (tmp_path / "outer" / "inner").symlink_to(tmp_path / "victim")
    with pytest.raises(PolicyViolation, match="no suitable mount point"):
        resolve(
            AllowedPath(str(tmp_path / "outer"), AccessMode.READ_WRITE, "/data"),
            AllowedPath(str(tmp_path / "inner"), guest_path="/data/inner"),
        )


def test_a_file_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "inner").touch()
    (tmp_path / "inner").mkdir()
    with pytest.raises(PolicyViolation, match="no suitable mount point"):
        resolve(
            AllowedPath(str(tmp_path / "outer"), guest_path="/data"),
            AllowedPath(str(tmp_path / "inner"), guest_path="/data/inner"),
        )


def test_top_level_links_are_seen_through(tmp_path: Path) -> None:
    assert canonical_target("/bin/tool", LINKS) == "/usr/bin/tool"
    assert canonical_target("/lib", LINKS) == "/usr/lib"
    assert canonical_target("/binary", LINKS) == "/binary"
    (tmp_path / "other").mkdir()
    with pytest.raises(PolicyViolation, match="twice"):
        resolve(
            AllowedPath(str(tmp_path), guest_path="/bin/x"),
            AllowedPath(str(tmp_path / "other"), guest_path="/usr/bin/x"),
        )


@given(st.lists(st.sampled_from(["/a", "/a/b", "/a/b/c", "/d", "/d/e"]), unique=True))
def test_every_path_is_there_once(targets: list[str]) -> None:
    # Sources without children, so only order and completeness are at stake; nested ones are refused above.
    flat = [target for target in targets if target.count("/") == 1]
    mounts = resolve(*(AllowedPath("/usr", guest_path=target) for target in flat))
    assert sorted(mount.target for mount in mounts) == sorted(flat)


def test_the_systems_part_holds_no_secrets_and_no_names() -> None:
    layout = system_layout()
    targets = {mount.target for mount in layout.mounts}
    assert "/usr" in targets and not any(mount.writable for mount in layout.mounts)
    assert not targets & {
        "/etc",
        "/etc/shadow",
        "/etc/ssl",
        "/etc/machine-id",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/var",
        "/root",
    }
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        [own] = [mount.source for mount in layout.mounts if mount.target == f"/etc/{name}"]
        assert own != f"/etc/{name}" and "sandbox" in Path(own).read_text() + "sandbox" * (name == "nsswitch.conf")
    assert all(mount.target == "/etc/resolv.conf" for mount in resolver_mounts())

"""A full control group is found, and named in the error for processes that could not be started."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from warmcell.lifetime import descriptors
from warmcell.lifetime.descriptors import full_pids_group, host_failure


def _groups(tmp_path: Path, numbers: dict[str, tuple[str, str]], membership: str) -> tuple[str, tuple[str, ...]]:
    for path, (most, current) in numbers.items():
        group = tmp_path / "cgroup" / path.lstrip("/")
        group.mkdir(parents=True, exist_ok=True)
        (group / "pids.max").write_text(f"{most}\n")
        (group / "pids.current").write_text(f"{current}\n")
    (tmp_path / "self").write_text(membership)
    return str(tmp_path / "self"), (str(tmp_path / "nowhere"), str(tmp_path / "cgroup"))


@pytest.mark.parametrize("membership", ["0::/a/b\n", "9:name=systemd:/x\n8:cpu,pids:/a/b\n0::/\n"], ids=["v2", "v1"])
@pytest.mark.parametrize(
    ("inner", "outer", "found"),
    [
        (("20", "20"), ("max", "90"), ("/a/b", 20)),
        (("20", "19"), ("max", "90"), None),
        (("max", "20"), ("30", "31"), ("/a", 30)),
        (("", ""), ("30", "30"), ("/a", 30)),
    ],
)
def test_the_nearest_full_group_is_found(
    tmp_path: Path, inner: tuple[str, str], outer: tuple[str, str], found: object, membership: str
) -> None:
    assert full_pids_group(*_groups(tmp_path, {"/a": outer, "/a/b": inner}, membership)) == found


def test_without_control_groups_there_is_none(tmp_path: Path) -> None:
    assert full_pids_group(str(tmp_path / "missing")) is None


def test_a_full_group_is_named_and_not_the_users_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "full_pids_group", lambda: ("/a", 20))
    error = host_failure(OSError(errno.EAGAIN, ""), "start python")
    assert "the cgroup /a has as many processes and threads as its pids.max of 20 allows" in error.message
    assert "RLIMIT" not in error.message and "--pids-limit" in (error.hint or "")

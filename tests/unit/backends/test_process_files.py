"""What a program leaves in place of a requested file: reported, never followed, never waited for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcell import AccessMode, AllowedPath, ExecRequest, InvalidRequest, Limits, ProcessBackend, SandboxPolicy

SECRET = "canary of the host"
HOSTILE = """
import os
os.symlink({target!r}, "link")
os.symlink(os.path.dirname({target!r}), "directory-link")
os.mkdir("directory")
os.mkfifo("pipe")
open("fine", "w").write("fine")
os.truncate(os.open("huge", os.O_CREAT | os.O_WRONLY), 65 << 20)
"""
ASKED = ["link", "directory-link/secret", "directory", "pipe", "huge", "fine", "nothing"]


@pytest.fixture(scope="module", params=["native", None], ids=["native", "bare"])
def backend(request: pytest.FixtureRequest) -> Iterator[ProcessBackend]:
    with ProcessBackend(enforcer=request.param) as made:
        yield made


@pytest.mark.attack("WS-07")
@pytest.mark.needs("user namespaces")
def test_links_pipes_directories_and_giants_are_denials_and_reveal_nothing(
    backend: ProcessBackend, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    code = HOSTILE.format(target=str(secret))
    result = backend.execute_blocking(ExecRequest("python", code, 30, fetch_files=ASKED))
    assert result.exit_code == 0, result.stderr
    assert result.files == {"fine": b"fine"}
    told = {denial.what for denial in result.denials if denial.rule == "fetch_files"}
    assert told == {"link", "directory-link/secret", "directory", "pipe", "huge"}


@pytest.mark.needs("user namespaces")
def test_a_tree_that_cannot_be_listed_goes_too(
    backend: ProcessBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import os; os.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a/b', 0); os.chmod('a', 0)"
    assert backend.execute_blocking(ExecRequest("python", code, 30, fetch_files=["a/b/c"])).exit_code == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.needs("user namespaces")
def test_the_disk_limit_holds_for_the_work_directory_of_a_run_with_files(backend: ProcessBackend) -> None:
    code = "import time\nwith open('big', 'wb') as file:\n for _ in range(64): file.write(bytes(1 << 20)); file.flush()\ntime.sleep(20)"
    for fetched, keeper in (([], ""), (["a"], "supervisor")):
        request = ExecRequest("python", code, 60, files={"a": b"x"}, fetch_files=fetched, limits=Limits(disk_mb=16))
        result = backend.execute_blocking(request)
        assert result.exit_code != 0
        assert result.enforced.disk is not None
        assert keeper in result.enforced.disk


@pytest.mark.needs("user namespaces")
def test_where_the_policy_takes_the_work_directory_no_request_writes_to_it(tmp_path: Path) -> None:
    path = AllowedPath(str(tmp_path), AccessMode.READ_WRITE, "/work")
    policy = SandboxPolicy(allowed_paths=(path,), allow_process_spawn=True)
    with ProcessBackend(policy=policy) as backend, pytest.raises(InvalidRequest) as caught:
        backend.execute_blocking(ExecRequest("python", "pass", 10, files={"a": "x"}))
    assert (caught.value.field, os.listdir(tmp_path)) == ("files", [])


@pytest.mark.needs("user namespaces", "gcc")
def test_a_compiler_sees_the_files_and_what_it_made_depends_on_them(backend: ProcessBackend) -> None:
    code = '#include "number.h"\n#include <stdio.h>\nint main(void) { printf("%d", NUMBER); }'
    for number in (1, 2):
        files = {"number.h": f"#define NUMBER {number}\n"}
        result = backend.execute_blocking(ExecRequest("c", code, 60, files=files))
        assert (result.stdout, result.stderr) == (str(number), "")


@pytest.mark.needs("user namespaces")
def test_few_and_many_bytes_arrive_the_same(backend: ProcessBackend) -> None:
    """What is small is sent with the job, what is large is mounted."""
    code = "import os; print(sorted((name, os.path.getsize(name)) for name in ['a/b/c', 'd']), os.listdir('a'))"
    for size in (0, 1000, 9 << 20):
        files = {"a/b/c": bytes(size), "d": b"x"}
        result = backend.execute_blocking(ExecRequest("python", code, 30, files=files))
        assert result.stdout == f"[('a/b/c', {size}), ('d', 1)] ['b']\n", result.stderr


@pytest.mark.needs("user namespaces", "node")
def test_a_node_that_has_started_already_gets_files_and_arguments(backend: ProcessBackend) -> None:
    code = "console.log(require('fs').readFileSync(process.argv[2], 'utf8'), process.argv.length)"
    for n in range(2):
        request = ExecRequest("javascript", code, 30, files={"a/b.txt": str(n)}, args=["a/b.txt", "x"])
        assert backend.execute_blocking(request).stdout == f"{n} 4\n"

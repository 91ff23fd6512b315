"""S3-14: a guest in a host directory cannot leave code there that git or an editor of the host executes."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import rmtree

import pytest
from tests.helpers import require

from warmcell import MountPoint, PolicyViolation, Sandbox, SandboxError, SandboxPolicyBuilder, SessionEnded
from warmcell.sandbox.local import guest_config
from warmcell.sandbox.local.guest_config import GuestConfig, sandbox_policy
from warmcell.workspace import protected_paths
from warmcell.workspace.protected_paths import find_protected
from warmcell.workspace.workspace import Workspace

pytestmark = [
    pytest.mark.needs("linux"), pytest.mark.needs("user namespaces"), pytest.mark.attack("S3-14")
]  # fmt: skip
#: Each tries to make the host's `git status` or `git commit` run a program of the guest.
ATTACKS = {
    "config": "git config core.fsmonitor ./evil",
    "append": "printf '[core]\\n\\tfsmonitor = ./evil\\n' >> .git/config",
    "replace": "cp .git/config c; printf '[core]\\n\\tfsmonitor = ./evil\\n' >> c; mv -f c .git/config",
    "remove": "rm -f .git/config; printf '[core]\\n\\tfsmonitor = ./evil\\n' > .git/config",
    "swap": "mv .git old && cp -r old .git && printf '[core]\\n\\tfsmonitor = ./evil\\n' >> .git/config",
    "move away": "rm -rf .git; git init -q . && git config core.fsmonitor ./evil",
    "hook": "cp evil .git/hooks/pre-commit; cp evil .git/hooks/post-index-change",
    "hooks swap": "mv .git/hooks .git/h; mkdir .git/hooks; cp evil .git/hooks/pre-commit",
    "commondir": "cp -r .git fake; printf '[core]\\n\\tfsmonitor = ./evil\\n' >> fake/config; echo ../fake > .git/commondir",
    "worktree": "cp -r .git fake; printf '[core]\\n\\tfsmonitor = ./evil\\n' >> fake/config;"
    " for tree in .git/worktrees/*; do echo $PWD/fake > $tree/commondir; done; cp evil ../tree; cp evil tree",
    "below": "printf '[core]\\n\\tfsmonitor = ../../evil\\n' >> libs/below/.git/config; cp evil libs/below/.git/hooks/pre-commit",
    "worktree's configuration": "printf '[core]\\n\\tfsmonitor = ../evil\\n' > .git/worktrees/tree/config.worktree; cp evil tree",
    "configuration of this worktree": "printf '[core]\\n\\tfsmonitor = ./evil\\n' > .git/config.worktree",
    "hooks elsewhere": "cp evil tools/hooks/pre-commit; mv tools t; cp -r t tools; cp evil tools/hooks/pre-commit",
    "included": "printf '[core]\\n\\tfsmonitor = ./evil\\n' > tools/shared.ini",
    "target of a hook": "cp evil tools/post-index-change.sh",
    "submodule": "printf '[core]\\n\\tfsmonitor = ../evil\\n' >> .git/modules/part/config",
    "submodule swap": "mv .git/modules m; cp -r m .git/modules; git -C .git/modules/part config core.fsmonitor ../evil",
}


def git(repository: Path, *words: str, check: bool = True) -> str:
    command = ["git", "-c", "user.name=host", "-c", "user.email=host@example.org", "-C", str(repository), *words]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "repository"
    made.mkdir()
    git(made, "init", "-q")
    (made / "file").write_text("one\n")
    git(made, "add", "file")
    git(made, "commit", "-q", "-m", "first")
    git(made, "config", "extensions.worktreeConfig", "true")
    git(made, "worktree", "add", "-q", str(made / "tree"))
    (made / "tools" / "hooks").mkdir(parents=True)
    (made / "tools" / "post-index-change.sh").write_text("#!/bin/sh\n")
    (made / "tools" / "post-index-change.sh").chmod(0o755)
    (made / "tools" / "hooks" / "post-index-change").symlink_to("../post-index-change.sh")
    (made / "tools" / "shared.ini").write_text("[core]\n\thooksPath = tools/hooks ; of all of us\n")
    git(made, "config", "include.path", "../tools/shared.ini")
    git(made, "init", "-q", str(made / "libs" / "below"))
    part = made / ".git" / "modules" / "part"
    part.mkdir(parents=True)
    (part / "config").write_text("[core]\n")
    return made


def config_and_hooks(repository: Path) -> dict[str, bytes]:
    places = (repository / ".git", repository / ".git/modules/part", repository / "libs/below/.git")
    files = [path for place in places for path in (place / "config", *(place / "hooks").glob("*"))]
    return {str(path): path.read_bytes() for path in files if path.exists()}


@pytest.mark.parametrize("work_path", ["host", "/work"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_git_of_the_host_runs_nothing_of_a_guest(repository: Path, attack: str, work_path: str) -> None:
    before = config_and_hooks(repository)
    with Sandbox(repository, work_path=work_path) as sandbox:
        sandbox.sh("printf '#!/bin/sh\\necho ran >> canary\\n' > evil; chmod +x evil")
        sandbox.sh(ATTACKS[attack])
    assert config_and_hooks(repository) == before
    run_host_tools(repository)
    assert not list(repository.rglob("canary"))


def run_host_tools(repository: Path) -> None:
    """There may be no repository left."""
    for place in (repository, repository / "tree", repository / "libs" / "below"):
        (place / "file").touch()
        git(place, "status", check=False)
        git(place, "commit", "-q", "--allow-empty", "-m", "host", check=False)


@pytest.mark.parametrize("attack", ["append", "remove", "swap", "hook", "commondir", "below", "submodule"])
def test_commands_of_the_toolbox_change_nothing_of_git(repository: Path, attack: str) -> None:
    """WASI can only open a directory as a whole; the worker's cage has parts of it read-only."""
    before = config_and_hooks(repository)
    with Sandbox(repository, backend="wasm") as sandbox:
        require(sandbox.sh("true").enforced.isolation_class == "wasm+process", "this host has no cage for workers")
        sandbox.sh("printf '#!/bin/sh\\necho ran >> canary\\n' > evil; chmod +x evil")
        sandbox.sh(ATTACKS[attack])
        assert sandbox.sh("echo two > file; cat file").stdout == "two\n"
    assert config_and_hooks(repository) == before
    run_host_tools(repository)
    assert not list(repository.rglob("canary"))


def test_a_configuration_that_the_host_wrote_meanwhile_is_protected_too(repository: Path) -> None:
    """Git renames a new file over the old one, and with that the kernel removes the mount in the worker's cage."""
    with Sandbox(repository, backend="wasm") as sandbox:
        require(sandbox.sh("true").enforced.isolation_class == "wasm+process", "this host has no cage for workers")
        git(repository, "config", "branch.main.description", "x")
        before = config_and_hooks(repository)
        sandbox.sh(ATTACKS["append"])
        assert sandbox.sh("echo two > file; cat file").stdout == "two\n"
    assert config_and_hooks(repository) == before


def test_git_still_works_inside(repository: Path) -> None:
    with Sandbox(repository, work_path="host") as sandbox:
        sandbox.write_file("file", "two\n")
        result = sandbox.sh(
            "git add file && git commit -qm second && git checkout -qb other && git log --oneline | wc -l"
        )
        assert (result.stdout.strip(), result.stderr) == ("2", "")
        assert not sandbox.spawn("git config core.x y").wait(30).ok
    assert "second" in git(repository, "log", "--oneline")


#: How the host replaces what a guest may only read. The kernel then removes the mount from every cage.
REPLACEMENTS = {
    "config": lambda repository: git(repository, "config", "branch.main.description", "x"),
    "hooks": lambda repository: (rmtree(repository / ".git/hooks"), (repository / ".git/hooks").mkdir()),
    "aside": lambda repository: ((repository / ".git").rename(repository / "old"), git(repository, "init", "-q")),
}
#: A guest that waits until it may write there.
WAIT_AND_WRITE = (
    "echo ready > ready; until [ -e begin ]; do sleep 0.01; done; "
    "sleep 5; echo '[evil]' >> .git/config; mkdir -p .git/hooks; cp ready .git/hooks/pre-commit; echo done > late"
)


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_untouched(repository: Path) -> bool:
    hook = repository / ".git/hooks/pre-commit"
    return "evil" not in (repository / ".git/config").read_text() and not hook.exists()


@pytest.mark.parametrize("way", ["config", "aside"])  # a new directory may have the old one's number
def test_a_session_ends_when_the_host_replaces_it(repository: Path, way: str) -> None:
    with Sandbox(repository, work_path="host") as sandbox, sandbox.session("command") as session:
        assert "Read-only" in session.run("echo '[evil]' >> .git/config").stderr
        REPLACEMENTS[way](repository)
        with pytest.raises(SessionEnded, match=r"the host replaced '.*/\.git/.*changes='ask'"):
            session.run("echo '[evil]' >> .git/config; echo evil > .git/hooks/pre-commit")
    assert is_untouched(repository)


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("way", REPLACEMENTS)
def test_programs_end_when_the_host_replaces_it(repository: Path, way: str, is_live: bool) -> None:
    """Nothing is asked of the sandbox meanwhile: the manager notices."""
    with Sandbox(repository, work_path="host") as sandbox, ThreadPoolExecutor(1) as pool:
        run = sandbox.spawn(WAIT_AND_WRITE).wait if is_live else partial(sandbox.sh, WAIT_AND_WRITE)
        running = pool.submit(run)
        wait_for(repository / "ready")
        REPLACEMENTS[way](repository)
        (repository / "begin").touch()
        with pytest.raises(SandboxError, match="the host replaced"):
            running.result(60)
    assert is_untouched(repository) and not (repository / "late").exists()


@pytest.mark.parametrize("is_live", [False, True])
def test_later_runs_are_protected_again(repository: Path, is_live: bool) -> None:
    """Warm cells have the mounts of before."""
    with Sandbox(repository, work_path="host", live=is_live) as sandbox:
        for number in range(4):
            result = sandbox.sh("echo '[evil]' >> .git/config || echo refused; git config branch.main.description")
            assert result.stdout.split() == (["refused", f"x{number - 1}"] if number else ["refused"])
            git(repository, "config", "branch.main.description", f"x{number}")
    assert is_untouched(repository)


def test_it_stays_refused_when_it_becomes_a_link(repository: Path) -> None:
    with Sandbox(repository, work_path="host") as sandbox:
        assert sandbox.sh("true").ok
        (repository / ".git/config").rename(repository / "elsewhere")
        (repository / ".git/config").symlink_to(repository / "elsewhere")
        with pytest.raises(PolicyViolation, match="create the sandbox again"):
            sandbox.sh("echo '[evil]' >> .git/config")
    assert is_untouched(repository)


def test_file_methods_refuse_it_too(repository: Path) -> None:
    """Tools of a model call them."""
    patch = "--- a/.git/config\n+++ b/.git/config\n@@ -1 +1,2 @@\n [core]\n+\tfsmonitor = ./evil\n"
    with Sandbox(repository) as sandbox:
        for call in (
            lambda: sandbox.write_file(".git/config", "x"),
            lambda: sandbox.write_file(".git/hooks/pre-commit", "x"),
            lambda: sandbox.write_file(".vscode/tasks.json", "x"),
            lambda: sandbox.write_file("libs/below/.git/config", "x"),
            lambda: sandbox.write_file(".git/commondir", "../x"),
            lambda: sandbox.remove(".git"),
            lambda: sandbox.remove(".git/hooks"),
            lambda: sandbox.upload(b"x", ".git/config"),
            lambda: sandbox.apply_patch(patch),
            lambda: sandbox.apply_patch("*** Begin Patch\n*** Delete File: .git/config\n*** End Patch\n"),
        ):
            with pytest.raises(PolicyViolation, match="read-only"):
                call()
        before = sandbox.snapshot()
        sandbox.write_file("file", "two\n")
        sandbox.restore(before)
        assert sandbox.read_text("file") == "one\n" and sandbox.exists(".git/config")


def test_what_cannot_be_protected_is_flagged(repository: Path) -> None:
    with Sandbox(repository) as sandbox:
        sandbox.sh(
            "echo x > new; git init -q deep/er; echo ../x > deep/er/.git/commondir;"
            " mkdir .vscode; echo 1 > .vscode/tasks.json"
        )
        flagged = {change.path for change in sandbox.diff() if change.is_flagged}
        assert {"deep/er/.git/commondir", "deep/er/.git/config", ".vscode/tasks.json"} <= flagged
        assert not {"new", "deep/er/.git/HEAD", ".git/commondir"} & flagged


def test_submodules_below_directories_and_too_many_of_them(repository: Path) -> None:
    modules = repository / ".git" / "modules"
    (modules / "libs" / "zlib").mkdir(parents=True)
    (modules / "libs" / "zlib" / "HEAD").write_text("ref: refs/heads/main\n")
    paths = [
        os.path.relpath(path, modules) for path in find_protected(str(repository)) if path.startswith(str(modules))
    ]
    assert (
        paths
        == [
            *("libs/zlib/config.worktree", "libs/zlib/hooks", "libs/zlib/commondir"),
            *("part/config", "part/config.worktree", "part/hooks", "part/commondir"),
        ]
        and not (modules / "libs" / "hooks").exists()
    )
    for number in range(40):
        (modules / f"m{number}").mkdir()
        (modules / f"m{number}" / "HEAD").touch()
    assert str(modules) in list(find_protected(str(repository)))


def test_a_repository_of_another_owner_is_read_only_as_a_whole(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cage refuses to show parts of a directory of another owner."""
    other = str(repository / ".git")
    monkeypatch.setattr(protected_paths, "_owner", lambda path: (0, int(path.startswith(other))))
    assert next(find_protected(str(repository))) == other
    monkeypatch.setattr(protected_paths, "_owner", lambda path: (0, int(path.endswith("part"))))
    assert str(repository / ".git/modules") in list(find_protected(str(repository)))


def test_what_is_created_in_a_repository_is_its_owners(repository: Path) -> None:
    """Whatever the umask: git of the host reads it."""
    before = os.umask(0o777)
    try:
        list(find_protected(str(repository)))
    finally:
        os.umask(before)
    names, part = ("config.worktree", "hooks", "commondir"), repository / ".git/modules/part"
    assert [oct((part / name).stat().st_mode & 0o777) for name in names] == ["0o600", "0o700", "0o600"]


def test_a_full_disk_leaves_no_empty_commondir(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git fails on one. Without any, a guest could write it once there is room again."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(SandboxError, match="No space left") as failure:
        patched.setattr(protected_paths, "write_all", refuse)
        list(find_protected(str(repository)))
    assert failure.value.fault == "host" and not (repository / ".git/commondir").exists()
    (repository / ".git/commondir").touch()  # as a killed program leaves it
    list(find_protected(str(repository)))
    assert (repository / ".git/commondir").read_text() == ".\n"
    git(repository, "status")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can list every directory")
def test_a_directory_that_cannot_be_listed(repository: Path) -> None:
    modules = repository / ".git" / "modules"
    (modules / "closed").mkdir(mode=0)
    assert str(modules) in list(find_protected(str(repository)))
    with Sandbox(repository) as sandbox:
        assert sandbox.sh("git status --short && ! touch .git/modules/x").ok
    (modules / "closed").chmod(0o700)


def test_links_in_a_repository_make_it_read_only(repository: Path) -> None:
    """Nothing can be mounted over a link, and a guest could replace it."""
    (repository / ".git" / "hooks").rename(repository / "shared")
    (repository / ".git" / "hooks").symlink_to("../shared")
    with Sandbox(repository) as sandbox:
        sandbox.sh("rm .git/hooks; mkdir .git/hooks; touch .git/hooks/pre-commit shared/pre-commit")
    assert (repository / ".git" / "hooks").is_symlink()
    assert not (repository / "shared" / "pre-commit").exists()


def test_very_many_directories_cost_little(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest made them, and the next sandbox is made on an event loop. Repositories beside them are found."""
    looks, owner = [], protected_paths._owner
    for number in range(100):
        (repository / f"d{number}").mkdir()

    def look(path: str) -> tuple[int, int]:
        looks.append(path)
        return owner(path)

    monkeypatch.setattr(protected_paths, "_owner", look)
    monkeypatch.setattr(protected_paths, "_MAX_LISTED", 1)
    git(repository, "init", "-q", str(repository / "z"))
    assert str(repository / "z/.git/config") in list(find_protected(str(repository)))
    assert len(looks) < 100


def test_a_directory_with_several_places_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    def search(directory: str) -> tuple[str, ...]:
        searched.append(directory)
        return (f"{directory}/.git/config",)

    data = tmp_path / "data"
    data.mkdir()
    mounts = tuple(MountPoint(data, f"/data{number}", writable=True) for number in range(3))
    monkeypatch.setattr(guest_config, "find_protected", search)
    policy = sandbox_policy(GuestConfig(str(tmp_path), is_host_dir=True, mounts=mounts))
    assert sorted(searched) == [str(tmp_path), str(data)]
    assert [path.guest_path for path in policy.allowed_paths if path.path == f"{data}/.git/config"] == [
        f"/data{number}/.git/config" for number in range(3)
    ]
    searched.clear()
    workspace = Workspace(tmp_path, mounts, protected=lambda directory: [tuple(search(directory))])
    workspace.close()
    assert sorted(searched) == [str(tmp_path), str(data)]


@pytest.mark.parametrize("work_path", ["/work", "host"])
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("place", ["", "project"])
def test_a_repository_behind_a_link_is_protected(
    repository: Path, tmp_path: Path, work_path: str, is_inside: bool, place: str
) -> None:
    """As Android's `repo` makes them."""
    top = tmp_path / "top"
    store = (top if is_inside else tmp_path) / "store" / "project.git"
    link = top / place / ".git"
    for directory in (store.parent, link.parent):
        directory.mkdir(parents=True, exist_ok=True)
    (repository / ".git").rename(store)
    link.symlink_to(os.path.relpath(store, link.parent))
    before = (store / "config").read_bytes()
    for _ in range(2):  # the second sandbox gets a directory that guests have written
        with Sandbox(top, work_path=work_path) as sandbox:
            sandbox.sh("echo x >> store/project.git/config; echo x > store/project.git/hooks/pre-commit")
            sandbox.sh(f"cd ./{place}; rm -f .git; mv .git aside; mkdir .git && echo x > .git/config; touch written")
            assert sandbox.sh(f"cd ./{place}; git log --oneline").ok == is_inside
            with pytest.raises(PolicyViolation):
                sandbox.remove(f"{place}/.git".lstrip("/"))
    assert os.readlink(link) == os.path.relpath(store, link.parent)
    assert (store / "config").read_bytes() == before
    assert not (store / "hooks" / "pre-commit").exists()
    assert (link.parent / "written").exists()


def test_a_repository_to_which_a_file_leads_is_protected(repository: Path, tmp_path: Path) -> None:
    """A bare repository beside its worktree, and one that `git init` has put elsewhere."""
    top = tmp_path / "top"
    bare, apart = top / "bare", top / "apart"
    git(repository, "clone", "-q", "--bare", ".", str(bare))
    git(bare, "worktree", "add", "-q", str(top / "tree"))
    git(repository, "init", "-q", "--separate-git-dir", str(apart), str(top / "own"))
    found = {os.path.relpath(path, top) for path in find_protected(str(top))}
    assert {f"bare/{name}" for name in ("config", "hooks", "config.worktree")} <= found
    assert {"bare/worktrees/tree/commondir", "bare/worktrees/tree/config.worktree"} <= found
    assert {f"apart/{name}" for name in ("config", "hooks", "config.worktree", "commondir")} <= found
    assert not (bare / "commondir").exists()  # git would take the repository for one with a worktree
    for place in ("tree", "own"):
        git(top / place, "status")


def test_a_worktree_obeys_the_configuration_of_its_repository(repository: Path) -> None:
    (repository / "tree" / "tools" / "hooks").mkdir(parents=True)
    with Sandbox(repository / "tree", work_path="host") as sandbox:
        sandbox.sh(
            "printf '#!/bin/sh\\necho ran >> canary\\n' > tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit"
        )
    run_host_tools(repository)
    assert not list(repository.rglob("canary"))


def test_the_plan_of_a_rebase_is_flagged(repository: Path) -> None:
    """It may say `exec`; git in the sandbox must be able to write it."""
    (repository / ".git" / "rebase-merge").mkdir()
    with Sandbox(repository) as sandbox:
        sandbox.sh("echo exec ./evil > .git/rebase-merge/git-rebase-todo")
        assert ".git/rebase-merge/git-rebase-todo" in {change.path for change in sandbox.diff() if change.is_flagged}
    with Sandbox(repository, work_path="host", changes="ask") as sandbox:
        sandbox.sh("echo exec ./evil2 > .git/rebase-merge/git-rebase-todo")
        assert sandbox.commit().skipped == (".git/rebase-merge/git-rebase-todo",)


@pytest.mark.parametrize(
    "value", ["x/\nhooksPath = " * 50_000, "x/" * 400_000, "x\n[" + "a" * 900_000], ids=["many", "long", "section"]
)
def test_long_configuration_costs_little(repository: Path, value: str) -> None:
    (repository / ".git" / "config").write_text(f"[core]\nhooksPath = {value}\n")
    with Sandbox(repository) as sandbox:
        assert sandbox.sh("true").ok


def test_what_git_is_told_to_run_is_flagged_in_changes(repository: Path) -> None:
    (repository / ".git" / "hooks" / "pre-commit").symlink_to("../../tools/check")
    with Sandbox(repository, work_path="host", changes="ask") as sandbox:
        sandbox.sh(
            "echo 1 > tools/check; echo 1 > tools/hooks/pre-push; echo 1 > tools/shared.ini; echo 1 > tools/other"
        )
        report = sandbox.commit()
        assert report.committed == ("tools/other",)
        assert set(report.skipped) == {"tools/check", "tools/hooks/pre-push", "tools/shared.ini"}
        sandbox.sh("rm -r tools; ln -s libs tools")
        assert "tools" in sandbox.commit().skipped


def test_writable_mounts_are_protected_too(repository: Path) -> None:
    with Sandbox(mounts=[MountPoint(repository, "/data", writable=True)]) as sandbox:
        assert not sandbox.sh("cd /data && git config core.x y").ok
        with pytest.raises(PolicyViolation):
            sandbox.write_file("/data/.git/config", "x")


def test_mounts_beside_a_layer_are_protected_too(repository: Path, tmp_path: Path) -> None:
    """Writes to a mount are not kept apart: the file methods changed the repository of the host."""
    (tmp_path / "work").mkdir()
    mounts = [MountPoint(repository, "/data", writable=True)]
    with Sandbox(tmp_path / "work", changes="ask", mounts=mounts) as sandbox:
        for path in (".git/config", ".git/hooks/pre-commit", ".vscode/tasks.json"):
            with pytest.raises(PolicyViolation, match="read-only"):
                sandbox.write_file(f"/data/{path}", "x")
        sandbox.write_file("/data/file", "two\n")
        sandbox.write_file(".vscode/tasks.json", "x")
        assert sandbox.commit().skipped == (".vscode/tasks.json",)


def test_a_policy_can_grant_it(repository: Path) -> None:
    policy = SandboxPolicyBuilder().allow_process_spawn().allow_read_write(repository / ".git").build()
    with Sandbox(repository, work_path="host", policy=policy) as sandbox:
        assert sandbox.sh("git config core.x y").ok
        sandbox.write_file(".git/hooks/mine", "x")


def test_a_private_directory_is_not_protected() -> None:
    with Sandbox() as sandbox:
        assert sandbox.sh("git init -q . && git config core.x y").ok
        sandbox.write_file(".git/config", "[core]\n")
        with sandbox.fork() as fork:
            assert fork.sh("git config core.x y").ok


def test_a_read_only_directory_is_not_changed(repository: Path) -> None:
    hooks = repository / ".git" / "hooks"
    rmtree(hooks)
    with Sandbox(mounts=[MountPoint(repository, "/data")]) as sandbox:
        assert sandbox.sh("cd /data && git log --oneline").ok
    assert not hooks.exists() and not (repository / ".git" / "commondir").exists()

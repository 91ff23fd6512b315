"""git.wasm against the real git: the same commands in two directories, the same output, exit status and object names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness import Guest, need

WHO = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.com",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.com",
}


class Pair:
    """Two work trees that see the same files and the same commands, one through each git."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        self.guest = guest
        self.ours, self.real = folder / "ours", folder / "real"
        self.ours.mkdir()
        self.real.mkdir()
        self.clock = 1_700_000_000

    def write(self, name: str, text: str | bytes) -> None:
        for side in (self.ours, self.real):
            target = side / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode() if isinstance(text, str) else text)

    def remove(self, name: str) -> None:
        for side in (self.ours, self.real):
            (side / name).unlink()

    def environment(self) -> dict[str, str]:
        date = f"{self.clock} +0100"
        return {**WHO, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}

    def run(self, *args: str, cwd: str = "", check_stderr: bool = False, env: dict[str, str] | None = None) -> str:
        """`env` replaces the usual environment."""
        self.clock += 60
        environment = self.environment() if env is None else env
        ours = self.guest.run(*args, work=self.ours, cwd=f"/work/{cwd}".rstrip("/"), env=environment)
        real = run_real(self.real / cwd, *args, env={**environment, "HOME": str(self.real)})
        expected = real.stdout.replace(str(self.real), "/work")
        assert ours.stdout == expected, f"git {' '.join(args)}\n{ours.stderr}\n--- real stderr\n{real.stderr}"
        assert ours.code == real.returncode, f"git {' '.join(args)}\n{ours.stderr}\n--- real stderr\n{real.stderr}"
        if check_stderr:
            assert ours.stderr == real.stderr.replace(str(self.real), "/work")
        return ours.stdout


def run_real(cwd: Path, *args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    base = {"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    return subprocess.run([need("git"), *args], cwd=cwd, env={**base, **env}, capture_output=True, text=True)


@pytest.fixture
def pair(git: Guest, tmp_path: Path) -> Pair:
    p = Pair(git, tmp_path)
    p.run("init", "-b", "main")
    return p


@pytest.fixture
def history(pair: Pair) -> Pair:
    """Three commits, a tag, a side branch."""
    pair.write("a.txt", "one\ntwo\nthree\n")
    pair.write("src/main.py", "def main():\n    return 1\n\n\ndef other():\n    return 2\n")
    pair.run("add", ".")
    pair.run("commit", "-m", "first")
    pair.write("a.txt", "one\n2\nthree\nfour\n")
    pair.run("commit", "-am", "second\n\nwith a body\nof two lines")
    pair.run("tag", "-a", "v1", "-m", "version one")
    pair.run("branch", "side")
    pair.write("b.txt", "b\n")
    pair.run("add", "b.txt")
    pair.run("commit", "-m", "third")
    return pair


def test_first_commit(pair: Pair) -> None:
    pair.run("status")
    pair.run("status", "-s")
    pair.write("a.txt", "hello\n")
    pair.write("dir/b.txt", "b")
    pair.write("dir/sub/c.txt", "c\n")
    pair.run("status")
    pair.run("status", "--porcelain")
    pair.run("status", "--porcelain", "-uall")
    pair.run("add", "a.txt")
    pair.run("status")
    pair.run("add", "-A")
    pair.run("status", "-sb")
    pair.run("commit", "-m", "first commit")
    pair.run("status")
    pair.run("log")
    pair.run("rev-parse", "HEAD")
    pair.run("ls-files", "-s")


def test_nothing_to_commit(history: Pair) -> None:
    history.run("commit", "-m", "nothing")
    history.write("new.txt", "x")
    history.run("commit", "-m", "nothing")
    history.write("a.txt", "changed\n")
    history.run("commit", "-m", "nothing")
    history.run("commit", "--allow-empty", "-m", "empty")


def test_status_kinds(history: Pair) -> None:
    history.write("a.txt", "one\nchanged\n")
    history.remove("b.txt")
    history.write("new file.txt", "x")
    history.write("src/added.py", "y = 1\n")
    history.run("add", "src/added.py")
    history.run("mv", "src/main.py", "src/renamed.py")
    history.run("status")
    history.run("status", "-s")
    history.run("status", "--porcelain")
    history.run("status", "-s", cwd="src")
    history.run("status", "-uno")
    history.run("add", "-u")
    history.run("status", "-s")
    history.run("diff", "--cached", "--stat")
    history.run("diff", "--cached", "--name-status")


def test_ignored(pair: Pair) -> None:
    pair.write(".gitignore", "*.log\nbuild/\n!keep.log\n/top.txt\n# comment\n")
    for name in ("x.log", "keep.log", "build/out.o", "top.txt", "dir/top.txt", "dir/y.log"):
        pair.write(name, name)
    pair.run("status", "-s")
    pair.run("status", "-s", "--ignored")
    pair.run("add", "x.log")
    pair.run("add", ".")
    pair.run("ls-files")
    pair.run("add", "-f", "x.log")
    pair.run("ls-files", "-o", "--exclude-standard")
    pair.run("status", "-s")


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--oneline"], ["-1"], ["-n", "2", "--oneline"], ["--format=%h %s"], ["--format=%H|%an|%ae|%ad|%cd|%ct|%s|%b|%P|%T"], ["--pretty=format:%h %s"], ["--pretty=oneline"],
        ["--stat"], ["-p"], ["--name-only"], ["--name-status", "--oneline"], ["--reverse", "--oneline"], ["--oneline", "--", "a.txt"], ["--oneline", "side..main"], ["--oneline", "--all"],
        ["--author=Ann", "--oneline"], ["--author=Bob"], ["--grep=second", "--oneline"], ["--date=iso"], ["--date=short", "--format=%ad"], ["--format=%aI %cI %as"], ["--oneline", "--decorate"], ["--format=%d"],
        ["--graph", "--oneline"], ["--pretty=fuller"], ["--pretty=short"], ["--pretty=raw"], ["--shortstat", "--oneline"], ["--numstat"], ["-p", "--stat", "-1"], ["--oneline", "v1"], ["--no-merges", "--oneline", "-S2"], ["--skip=1", "--oneline"],
    ],
    ids=lambda a: " ".join(a) or "plain",
)  # fmt: skip
def test_log(history: Pair, arguments: list[str]) -> None:
    history.run("log", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["HEAD~1"],
        ["v1"],
        ["--stat"],
        ["HEAD:a.txt"],
        ["--name-only", "HEAD"],
        ["-s", "HEAD"],
        ["--oneline"],
        ["HEAD~2", "--", "src"],
        ["main^:src"],
        ["--format=%s", "HEAD"],
    ],
    ids=lambda a: " ".join(a) or "plain",
)
def test_show(history: Pair, arguments: list[str]) -> None:
    history.run("show", *arguments)


def test_diff_forms(history: Pair) -> None:
    history.write("a.txt", "zero\none\n2\nthree\nfour")
    history.write(
        "src/main.py", "def main():\n    return 1\n\n\ndef middle():\n    return 5\n\n\ndef other():\n    return 3\n"
    )
    history.run("diff")
    history.run("diff", "--stat")
    history.run("diff", "--name-only")
    history.run("diff", "--name-status")
    history.run("diff", "--numstat")
    history.run("diff", "--shortstat")
    history.run("diff", "a.txt")
    history.run("diff", "--", "src")
    history.run("diff", "HEAD~2")
    history.run("diff", "HEAD~2", "HEAD")
    history.run("diff", "HEAD~2..HEAD", "--stat")
    history.run("diff", "side...main")
    history.run("diff", "-U1")
    history.run("diff", "--exit-code")
    history.run("diff", "--quiet")
    history.run("add", "a.txt")
    history.run("diff")
    history.run("diff", "--cached")
    history.run("diff", "--staged", "--stat")
    history.run("diff", "HEAD", "-w")


def test_diff_special(pair: Pair) -> None:
    pair.write("bin", b"\0\1\2")
    pair.write("empty", "")
    pair.write("long.txt", "".join(f"line {i}\n" for i in range(60)))
    pair.write("with space.txt", "x\n")
    pair.write("ünïcode.txt", "x\n")
    pair.run("add", ".")
    pair.run("diff", "--cached")
    pair.run("commit", "-m", "start")
    pair.write("bin", b"\0\1\2\3")
    pair.write("empty", "now\n")
    pair.write("long.txt", "".join(f"line {i}\n" for i in range(60) if i not in (5, 30)) + "end\n")
    pair.write("with space.txt", "y\n")
    pair.write("ünïcode.txt", "y\n")
    pair.run("diff")
    pair.run("diff", "--stat")
    pair.run("diff", "--numstat")
    pair.run("commit", "-am", "change")
    pair.run("mv", "long.txt", "moved.txt")
    pair.run("diff", "--cached")
    pair.run("commit", "-m", "move")
    pair.run("show", "--stat")
    pair.run("rm", "moved.txt")
    pair.run("commit", "-m", "remove")


def test_diff_indent_heuristic(pair: Pair) -> None:
    functions = [f"def f{i}(x):\n    if x:\n        return {i}\n    return None\n\n\n" for i in range(6)]
    pair.write("f.py", "".join(functions))
    pair.run("add", ".")
    pair.run("commit", "-m", "start")
    pair.write(
        "f.py",
        "".join([*functions[:3], "def new(x):\n    if x:\n        return 9\n    return None\n\n\n", *functions[3:]]),
    )
    pair.run("diff")
    pair.write("f.py", "".join(functions[:2] + functions[3:]))
    pair.run("diff")
    pair.write("f.py", "".join(functions[:2] + functions[2:3] * 2 + functions[4:]))
    pair.run("diff", "--stat")
    pair.run("diff")


def test_branches(history: Pair) -> None:
    history.run("branch")
    history.run("branch", "-v")
    history.run("branch", "topic", "HEAD~1")
    history.run("branch", "topic")
    history.run("branch", "bad..name")
    history.run("branch", "--list", "t*")
    history.run("branch", "--show-current")
    history.run("branch", "-m", "topic", "renamed")
    history.run("branch", "-d", "renamed")
    history.run("branch", "-d", "main")
    history.run("branch", "-d", "nope")
    history.run("branch", "--merged")
    history.run("branch", "--contains", "HEAD")


def test_checkout(history: Pair) -> None:
    history.run("checkout", "side", check_stderr=True)
    history.run("ls-files")
    history.run("status")
    history.run("checkout", "-b", "new", check_stderr=True)
    history.write("a.txt", "changed\n")
    history.run("checkout", "main", check_stderr=True)
    history.run("status", "-s")
    history.run("checkout", "HEAD~2", check_stderr=True)
    history.run("checkout", "--", "a.txt")
    history.run("checkout", "HEAD~2", check_stderr=True)
    history.run("status")
    history.run("branch")
    history.run("checkout", "-", check_stderr=True)
    history.run("checkout", "nope", check_stderr=True)
    history.run("checkout", "HEAD~1", "--", "a.txt")
    history.run("checkout", "HEAD~2", "a.txt", check_stderr=True)
    history.run("status", "-s")


def test_switch_and_restore(history: Pair) -> None:
    history.run("switch", "side", check_stderr=True)
    history.run("switch", "-c", "topic", check_stderr=True)
    history.run("switch", "nope", check_stderr=True)
    history.run("switch", "-", check_stderr=True)
    history.write("a.txt", "x\n")
    history.run("restore", "a.txt")
    history.run("status", "-s")
    history.write("a.txt", "x\n")
    history.run("add", "a.txt")
    history.run("restore", "--staged", "a.txt")
    history.run("status", "-s")
    history.run("restore", "--source=HEAD~1", "a.txt")
    history.run("diff", "--stat")
    history.run("restore", "nope", check_stderr=True)


def test_reset(history: Pair) -> None:
    history.write("a.txt", "x\n")
    history.run("add", "a.txt")
    history.run("reset")
    history.run("status", "-s")
    history.run("reset", "--soft", "HEAD~1")
    history.run("status", "-s")
    history.run("reset", "--hard", "HEAD")
    history.run("status", "-s")
    history.run("reset", "HEAD~1")
    history.run("log", "--oneline")
    history.run("reset", "--hard", "nope", check_stderr=True)


def test_merge_fast_forward(history: Pair) -> None:
    history.run("checkout", "side")
    history.run("merge", "main")
    history.run("merge", "main")
    history.run("log", "--oneline")
    history.run("merge", "nope", check_stderr=True)


def test_merge_commit(history: Pair) -> None:
    history.run("checkout", "side")
    history.write("c.txt", "c\n")
    history.write("a.txt", "one\n2\nthree\nfour\nfive\n")
    history.run("add", ".")
    history.run("commit", "-m", "side work")
    history.run("checkout", "main")
    history.write("a.txt", "ONE\n2\nthree\nfour\n")
    history.run("commit", "-am", "main work")
    history.run("merge", "side")
    history.run("log", "--oneline")
    history.run("log", "-1")
    history.run("show", "--stat")
    assert (history.ours / "a.txt").read_text() == (history.real / "a.txt").read_text()


def test_merge_conflict(history: Pair) -> None:
    history.run("checkout", "side")
    history.write("a.txt", "one\nside\nthree\nfour\n")
    history.run("commit", "-am", "side work")
    history.run("checkout", "main")
    history.write("a.txt", "one\nmain\nthree\nfour\n")
    history.run("commit", "-am", "main work")
    history.run("merge", "side")
    assert (history.ours / "a.txt").read_text() == (history.real / "a.txt").read_text()
    history.run("status")
    history.run("status", "-s")
    history.run("ls-files", "-u")
    history.run("commit", "-m", "too early", check_stderr=True)
    history.write("a.txt", "one\nboth\nthree\nfour\n")
    history.run("add", "a.txt")
    history.run("status")
    history.run("commit", "--no-edit")
    history.run("log", "-1")
    history.run("merge", "--abort", check_stderr=True)


def test_merge_abort_and_delete(history: Pair) -> None:
    history.run("checkout", "side")
    history.run("rm", "a.txt")
    history.run("commit", "-m", "side removes")
    history.run("checkout", "main")
    history.write("a.txt", "more\n")
    history.run("commit", "-am", "main work")
    history.run("merge", "side")
    history.run("status", "-s")
    history.run("merge", "--abort")
    history.run("status", "-s")


def test_amend(history: Pair) -> None:
    history.write("b.txt", "more\n")
    history.run("commit", "-a", "--amend", "-m", "third, better")
    history.run("commit", "--amend", "--no-edit")
    history.run("log", "-2")


def test_rm_and_mv(history: Pair) -> None:
    history.run("rm", "b.txt")
    history.run("rm", "nope", check_stderr=True)
    history.run("rm", "src", check_stderr=True)
    history.run("rm", "-r", "--cached", "src")
    history.run("status", "-s")
    history.write("a.txt", "changed\n")
    history.run("rm", "a.txt", check_stderr=True)
    history.run("mv", "a.txt", "z.txt")
    history.run("mv", "nope", "q", check_stderr=True)
    history.run("status", "-s")


def test_tags(history: Pair) -> None:
    history.run("tag")
    history.run("tag", "v2")
    history.run("tag", "v2", check_stderr=True)
    history.run("tag", "-l", "v*")
    history.run("tag", "old", "HEAD~2")
    history.run("rev-parse", "v1", "v2", "v1^{commit}")
    history.run("tag", "-d", "old")
    history.run("show", "v1", "-s")
    history.run("tag", "-n")


def test_config(pair: Pair) -> None:
    pair.run("config", "user.name", "Bob Builder")
    pair.run("config", "user.email", "bob@example.com")
    pair.run("config", "user.name")
    pair.run("config", "--get", "user.email")
    pair.run("config", "nope.nope")
    pair.run("config", "alias.co", "checkout -b # x")
    pair.run("config", "alias.co")
    pair.run("config", "--unset", "alias.co")
    pair.run("config", "--unset", "alias.co")
    pair.run("config", "--global", "core.pager", "cat")
    pair.run("config", "--global", "--list")
    pair.run("config", "branch.main.remote", "origin")
    real = (pair.real / ".git" / "config").read_text().replace("filemode = true", "filemode = false")
    assert (pair.ours / ".git" / "config").read_text() == real
    pair.write("x", "x")
    pair.run("add", ".")
    pair.run(
        "commit",
        "-m",
        "by the config",
        env={key: value for key, value in pair.environment().items() if key.endswith("DATE")},
    )
    pair.run("log", "--format=%an %ae")


def test_rev_parse(history: Pair) -> None:
    for arguments in (
        ["HEAD"],
        ["--short", "HEAD"],
        ["--abbrev-ref", "HEAD"],
        ["--show-toplevel"],
        ["--git-dir"],
        ["--is-inside-work-tree"],
        ["HEAD~1", "HEAD^"],
        ["main", "side"],
        ["--verify", "nope"],
        ["HEAD:a.txt"],
        ["side..main"],
    ):
        history.run("rev-parse", *arguments)
    history.run("rev-parse", "--show-prefix", cwd="src")
    history.run("merge-base", "main", "side")
    history.run("rev-list", "--count", "HEAD")
    history.run("cat-file", "-p", "HEAD")
    history.run("cat-file", "-t", "HEAD^{tree}")
    history.run("ls-tree", "-r", "HEAD")


def test_stash(history: Pair) -> None:
    history.run("stash")
    history.write("a.txt", "stashed\n")
    history.write("n.txt", "new\n")
    history.run("add", "n.txt")
    history.run("stash")
    history.run("status", "-s")
    history.run("stash", "list")
    history.run("stash", "pop")
    history.run("stash", "push", "-m", "note")
    history.run("stash", "list")
    history.run("stash", "apply")
    history.run("stash", "drop")


def test_clone(history: Pair) -> None:
    history.run("clone", ".", "copy")
    history.run("log", "--oneline", cwd="copy")
    history.run("status", cwd="copy")
    history.run("branch", "-a", cwd="copy")
    history.run("checkout", "side", cwd="copy")
    history.run("status", cwd="copy")
    history.run("remote", "-v", cwd="copy")


def test_outside_a_repository(git: Guest, tmp_path: Path) -> None:
    outcome = git.run("status", work=tmp_path)
    assert (outcome.code, outcome.stderr) == (
        128,
        "fatal: not a git repository (or any of the parent directories): .git\n",
    )
    assert git.run("nope", work=tmp_path).code == 1


def test_the_first_commit_needs_no_identity(git: Guest, tmp_path: Path) -> None:
    git.run("init", work=tmp_path)
    (tmp_path / "x").write_text("x")
    git.run("add", "x", work=tmp_path)
    outcome = git.run("commit", "-m", "x", work=tmp_path)
    assert (outcome.code, outcome.stderr) == (0, "")
    show = ("log", "-1", "--format=%an <%ae> %cn <%ce>")
    assert git.run(*show, work=tmp_path).stdout == "sandbox <sandbox@localhost> sandbox <sandbox@localhost>\n"
    git.run("config", "user.name", "Ada", work=tmp_path)
    git.run("commit", "--amend", "--reset-author", "-m", "y", work=tmp_path, env={"EMAIL": "ada@example.com"})
    assert git.run(*show, work=tmp_path).stdout == "Ada <ada@example.com> Ada <ada@example.com>\n"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["user.name=", "user.email=a@example.com"], "empty ident name (for <a@example.com>) not allowed"),
        (["user.useConfigOnly=true"], "no email was given and auto-detection is disabled"),
        (["user.useConfigOnly=true", "user.email=a@b"], "no name was given and auto-detection is disabled"),
    ],
)
def test_an_identity_that_cannot_be_used(git: Guest, tmp_path: Path, settings: list[str], reason: str) -> None:
    git.run("init", work=tmp_path)
    options = [part for setting in settings for part in ("-c", setting)]
    outcome = git.run(*options, "commit", "--allow-empty", "-m", "x", work=tmp_path)
    assert outcome.code == 128
    assert "Please tell me who you are." in outcome.stderr
    assert outcome.stderr.endswith(f"fatal: {reason}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["clone", "https://example.com/x.git"],
        ["clone", "git@example.com:x/y.git"],
        ["fetch", "https://example.com/x"],
        ["push"],
        ["pull"],
    ],
)
def test_no_network(git: Guest, tmp_path: Path, arguments: list[str]) -> None:
    git.run("init", work=tmp_path)
    outcome = git.run(*arguments, work=tmp_path)
    assert outcome.code == 128
    assert outcome.stderr.startswith("fatal: ") and "no network in this sandbox" in outcome.stderr


def test_real_git_accepts_ours_and_the_reverse(history: Pair) -> None:
    fsck = run_real(history.ours, "fsck", "--strict", "--full", env={"HOME": str(history.ours)})
    assert fsck.returncode == 0 and not re.search("error|warning", fsck.stderr), fsck.stderr
    assert run_real(history.ours, "status", "--porcelain", env={"HOME": "/"}).stdout == ""
    run_real(history.ours, "gc", "--quiet", env={"HOME": "/"})  # packs objects and refs
    assert history.guest.run("status", "--porcelain", work=history.ours).stdout == ""
    assert history.guest.run("log", "--oneline", work=history.ours).stdout.count("\n") == 3
    ours_on_real = history.guest.run("log", "-p", work=history.real)
    assert ours_on_real.stdout == run_real(history.real, "log", "-p", env={"HOME": "/"}).stdout

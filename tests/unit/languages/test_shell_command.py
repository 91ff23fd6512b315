"""Shell commands: statuses, pipes, stdin, and the plain command that needs no shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.languages.running import run_program

from warmcell.core.errors import BackendUnavailable
from warmcell.languages import shell
from warmcell.languages.config import ProcessConfig
from warmcell.languages.shell import ShellRuntime, find_shell, plain_command

DEFAULT = ProcessConfig()


def run(
    code: str, tmp_path: Path, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_program(
        ShellRuntime().prepare(code, DEFAULT), tmp_path, stdin=stdin, env=env or {"PATH": "/usr/bin:/bin"}
    )


def test_program_is_a_script_file() -> None:
    program = ShellRuntime().prepare("echo hi | cat", DEFAULT)
    assert program.argv == (find_shell(), "{code}/main.sh")
    assert dict(program.files) == {"main.sh": b"echo hi | cat"} and program.worker is None and not program.runtime_paths


def test_bash_if_there_is_one_else_sh(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"bash": "/usr/bin/bash", "sh": "/usr/bin/sh"}
    monkeypatch.setattr(shell, "find_program", lambda name, _search=None: have.get(name))
    assert find_shell().endswith("/bash")
    del have["bash"]
    assert find_shell().endswith("/sh")
    have.clear()
    with pytest.raises(BackendUnavailable, match="neither bash nor sh"):
        find_shell()


def test_a_shell_is_found_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert Path(find_shell()).is_file()


@pytest.mark.parametrize(
    ("code", "stdout", "status"),
    [
        ("exit 42", "", 42),
        ("echo one; echo two | tr a-z A-Z", "one\nTWO\n", 0),
        ("false", "", 1),
        ("no-such-command-here", "", 127),
        ("/usr/bin/no-such-command-here", "", 127),
        ('read line; echo "got $line"; cat', "got first\nsecond\n", 0),
        ("set -- a b; echo $# ${0##*/}", "2 main.sh\n", 0),
        ("cat <<'END'\n$HOME `x`\nEND", "$HOME `x`\n", 0),
        ("f() { return 3; }\nf", "", 3),
        ("echo żółć", "żółć\n", 0),
        ("if", "", 2),
    ],
)
def test_it_behaves_as_a_shell_does(code: str, stdout: str, status: int, tmp_path: Path) -> None:
    done = run(code, tmp_path, stdin="first\nsecond\n")
    assert (done.stdout, done.returncode) == (stdout, status)


def test_a_long_script_does_not_become_an_argument(tmp_path: Path) -> None:
    code = "\n".join(f": line {number}" for number in range(100_000)) + "\necho end"
    assert run(code, tmp_path).stdout == "end\n"


@pytest.mark.parametrize("env", [{}, {"A": "1", "B": "two words"}])
def test_env_prints_what_was_given_and_nothing_more(env: dict[str, str], tmp_path: Path) -> None:
    program = ShellRuntime().prepare("/usr/bin/env\n", DEFAULT)
    done = run_program(program, tmp_path, env=env)
    assert sorted(done.stdout.splitlines()) == sorted(f"{key}={value}" for key, value in env.items())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("/usr/bin/env", ("/usr/bin/env",)),
        ("  /usr/bin/env  A=1 -u B\n", ("/usr/bin/env", "A=1", "-u", "B")),
        ("/bin/cat file.txt", ("/bin/cat", "file.txt")),
        ("env", None),
        ("/usr/bin/env; true", None),
        ("/usr/bin/env\n/usr/bin/env", None),
        ("/usr/bin/env $HOME", None),
        ("/usr/bin/env *", None),
        ("/usr/bin/env ~", None),
        ("/usr/bin/env 'x'", None),
        ("/usr/bin/env > x", None),
        ("/usr/bin/env # comment", None),
        ("/usr/bin/env {code}", None),
        ("/usr/bin/no-such-command-here", None),
        ("/usr/bin", None),
        ("/etc/hosts", None),
        ("A=1 /usr/bin/env", None),
    ],
)
def test_only_a_plain_command_does_without_a_shell(code: str, words: tuple[str, ...] | None) -> None:
    assert plain_command(code) == words


@given(st.text(alphabet="/usrbinev ab;|&$`'\"\\<>(){}[]*?~#!=\n\t-.,:@%+äＡ\r"))
def test_what_a_shell_would_treat_specially_is_left_to_it(tail: str) -> None:
    words = plain_command("/usr/bin/env " + tail)
    if words is not None:
        assert not set(tail.strip(" \t\n")) & set(";|&$`'\"\\<>(){}[]*?~#!\n\t\räＡ")
        assert list(words) == ["/usr/bin/env", *tail.split()]

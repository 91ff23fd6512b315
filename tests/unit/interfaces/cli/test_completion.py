"""Completion scripts are made from the parser and are valid in their shells."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from warmcell.interfaces.cli.command_table import COMMANDS
from warmcell.interfaces.cli.completion import commands

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_in_the_script(warmcell: Any, shell: str) -> None:
    ended = warmcell("completion", shell)
    assert ended.status == 0
    for command in commands():
        assert command.name in ended.stdout
        for option in command.options:
            assert option.names[-1].lstrip("-") in ended.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_its_script(warmcell: Any, shell: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"this host has no {shell}")
    script = tmp_path / "script"
    script.write_text(warmcell("completion", shell).stdout)
    subprocess.run([shell, "-n", str(script)], check=True, capture_output=True)


def complete(script: Path, *words: str) -> list[str]:
    line = f"""source {script}; COMP_WORDS=({" ".join(words)!s}); COMP_CWORD={len(words) - 1}
_warmcell; printf '%s\\n' "${{COMPREPLY[@]}}\""""
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.needs("bash")
def test_bash_completes(warmcell: Any, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(warmcell("completion", "bash").stdout)
    assert complete(script, "warmcell", "do") == ["doctor"]
    assert complete(script, "warmcell", "run", "--allow-d") == ["--allow-domain"]
    assert "python" in complete(script, "warmcell", "run", "py")


def test_every_command_is_offered_and_there() -> None:
    assert [command.name for command in commands()] == list(COMMANDS)
    for _, _, handler in COMMANDS.values():
        module, function = handler.split(":")
        assert callable(getattr(import_module(f"warmcell.interfaces.cli.{module}"), function))


def test_an_unknown_shell_is_wrong_usage(warmcell: Any) -> None:
    assert warmcell("completion", "tcsh").status == 2


def test_backends_and_languages_of_this_host_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    [run] = [command for command in commands() if command.name == "run"]
    [backend] = [option for option in run.options if "--backend" in option.names]
    assert backend.values[:2] == ("process", "wasm")
    assert {"python", "py", "command", "bash"} <= set(run.words) and "rust" not in run.words

"""What is read without argparse means what argparse says it means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.interfaces.cli.exits import UsageError
from warmcell.interfaces.cli.fast_parser import read_run, read_sh
from warmcell.interfaces.cli.parser import parse

WORDS = """
    run python script.ts - -- -c --code --write --timeout --memory --max-output --policy --allow-read --allow-write --allow-domain --env
    --backend process wasm --enforcer none --json --quiet -q --jso --help -h 5 -5 -cprint(1) --timeout=5 --env=A=B A=B -1 -x
""".split()


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.sampled_from(["", "a b", "-a b", "é"])), max_size=8))
def test_it_agrees_with_argparse_or_leaves_it_to_it(words: list[str]) -> None:
    for argv, read in ((["run", *words], read_run), (["sh", *words], read_sh)):
        found = read(argv)
        if found is not None:
            try:
                expected = vars(parse(argv))
            except (UsageError, SystemExit):
                pytest.fail(f"argparse refuses {argv}")
            expected.pop("handler")
            assert vars(found) == expected


@pytest.mark.parametrize(
    "words",
    [
        "python -c print(1)",
        "python -",
        "script.py",
        "script.py -- --timeout 5 -c -- x",
        "python -c print(1) --json --quiet -- a",
        "--timeout 5 --json python script.py --env A=1 --env B=2",
        "python -c 1 --memory 64 --max-output 5 --allow-read /a --allow-write /b --allow-domain c --enforcer native",
    ],
)
def test_plain_command_lines_are_read(words: str) -> None:
    assert read_run(["run", *words.split()]) is not None


@pytest.mark.parametrize("words", ["ls", "ls --write --json --timeout 5", "--memory 64 --env A=1 --env B=2 ls"])
def test_plain_scripts_are_read(words: str) -> None:
    assert read_sh(["sh", *words.split()]) is not None


@pytest.mark.parametrize("argv", [[], ["sh", "ls"], ["run"], ["run", "--help"], ["run", "python", "-c"], ["--version"]])
def test_the_rest_is_left_alone(argv: list[str]) -> None:
    assert read_run(argv) is None


@pytest.mark.parametrize("argv", [[], ["run", "x"], ["sh"], ["sh", "--help"], ["sh", "--", "ls"], ["sh", "a", "b"]])
def test_the_rest_of_sh_is_left_alone(argv: list[str]) -> None:
    assert read_sh(argv) is None

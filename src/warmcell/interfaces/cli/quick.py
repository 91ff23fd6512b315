"""Plain `warmcell run` command lines, read without argparse, which takes longer to load than most programs run.

Whatever is not plainly right is left to argparse: it alone says what is wrong, and what help there is. A test holds the
two together.
"""

from __future__ import annotations

from types import SimpleNamespace

_VALUES = ("--code", "--timeout", "--memory", "--max-output", "--policy", "--enforcer", "--audit")
_LISTS = ("--allow-read", "--allow-write", "--allow-domain", "--env")


def read_run(argv: list[str]) -> SimpleNamespace | None:
    """The arguments of `warmcell run`, or None where argparse has to look."""
    if argv[:1] != ["run"]:
        return None
    own, for_program = split_at_dashes(argv)
    found = _defaults()
    found.args = for_program
    places: list[str] = []
    are_places_over = False
    words = iter(own[1:])
    for word in words:
        if word == "-" or not word.startswith("-"):
            if are_places_over:
                return None
            places.append(word)
            continue
        are_places_over = bool(places)
        option = "--code" if word == "-c" else word
        name = option[2:].replace("-", "_")
        if option == "--json":
            found.json = True
        elif option not in (*_VALUES, *_LISTS) or (value := next(words, "-")).startswith("-"):
            return None
        elif option in _LISTS:
            getattr(found, name).append(value)
        else:
            setattr(found, name, value)
    if not 1 <= len(places) <= 2:
        return None
    found.target, found.source = (*places, None)[:2]
    return found


def split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those after the first `--`, which are for the program and never options of ours."""
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end], argv[end + 1 :]


def _defaults() -> SimpleNamespace:
    return SimpleNamespace(
        code=None,
        timeout="30",
        memory=None,
        max_output=None,
        policy=None,
        allow_read=[],
        allow_write=[],
        allow_domain=[],
        env=[],
        backend=None,
        enforcer="auto",
        audit=None,
        record=None,
        json=False,
    )

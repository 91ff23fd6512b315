"""Plain lines of `warmcell run` and `warmcell sh`, read without argparse, which takes longer than most programs run.

Whatever is not plainly right is left to argparse: it alone says what is wrong, and what help there is. A test holds the
two together.
"""

from __future__ import annotations

from types import SimpleNamespace

_VALUES = ("--code", "--timeout", "--memory", "--max-output", "--policy", "--enforcer", "--audit")
_LISTS = ("--allow-read", "--allow-write", "--allow-domain", "--env")
_OF_SH = ("--timeout", "--memory", "--policy", "--allow-domain", "--env", "--write", "--json")


def read_run(argv: list[str]) -> SimpleNamespace | None:
    """The arguments of `warmcell run`, or None where argparse has to look."""
    if argv[:1] != ["run"]:
        return None
    own, for_program = split_at_dashes(argv)
    found = _defaults()
    places = _read(own[1:], found, (*_VALUES, *_LISTS, "--json"))
    if places is None or not 1 <= len(places) <= 2:
        return None
    found.args = for_program
    found.target, found.source = (*places, None)[:2]
    return found


def needs_no_packages(run: SimpleNamespace | None, script: SimpleNamespace | None = None) -> bool:
    """Whether it will do with the standard library and what was installed with us: other languages, and the network,
    can bring others.
    """
    if script is not None:
        return not (script.policy or script.allow_domain)
    return run is not None and run.target == "python" and not (run.policy or run.allow_domain or run.audit)


def read_sh(argv: list[str]) -> SimpleNamespace | None:
    """The arguments of `warmcell sh`, or None where argparse has to look."""
    if argv[:1] != ["sh"] or "--" in argv:
        return None
    found = SimpleNamespace(
        args=[], timeout="30", memory=None, policy=None, allow_domain=[], env=[], write=False, json=False
    )
    places = _read(argv[1:], found, _OF_SH)
    if places is None or len(places) != 1:
        return None
    (found.script,) = places
    return found


def _read(words: list[str], found: SimpleNamespace, known: tuple[str, ...]) -> list[str] | None:
    """Sets the options that are `known`, and returns the rest; None where a word is not plainly one of either."""
    places: list[str] = []
    are_places_over = False
    left = iter(words)
    for word in left:
        if word == "-" or not word.startswith("-"):
            if are_places_over:
                return None
            places.append(word)
            continue
        are_places_over = bool(places)
        option = "--code" if word == "-c" else word
        name = option[2:].replace("-", "_")
        if option not in known:
            return None
        if option in ("--json", "--write"):
            setattr(found, name, True)
        elif (value := next(left, "-")).startswith("-"):
            return None
        elif option in _LISTS:
            getattr(found, name).append(value)
        else:
            setattr(found, name, value)
    return places


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

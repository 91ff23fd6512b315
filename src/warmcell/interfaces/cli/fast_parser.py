"""Parses common command lines of `run` and `sh` without argparse, whose import takes longer than most programs run.

Anything unusual is left to argparse, which reports errors and help. A test compares the two.
"""

from __future__ import annotations

from types import SimpleNamespace

_VALUES = ("--code", "--timeout", "--memory", "--max-output", "--policy", "--enforcer", "--audit", "--image", "--user")
_LISTS = ("--allow-read", "--allow-write", "--allow-domain", "--env")
_SH_OPTIONS = ("--timeout", "--memory", "--policy", "--allow-domain", "--env", "--write", "--json", "--quiet")


def read_run(argv: list[str]) -> SimpleNamespace | None:
    """The arguments of `warmcell run`, or None if argparse must parse them."""
    if argv[:1] != ["run"]:
        return None
    own, for_program = split_at_dashes(argv)
    found = SimpleNamespace(
        **dict.fromkeys(
            ("code", "memory", "max_output", "policy", "gpu", "backend", "audit", "record", "image", "user", "patch")
        ),
        **dict.fromkeys(("changes", "commit", "discard", "json", "quiet"), False),
        **{name[2:].replace("-", "_"): [] for name in _LISTS},
        timeout="30",
        enforcer="auto",
    )
    operands = _read(own[1:], found, (*_VALUES, *_LISTS, "--json", "--quiet"))
    if operands is None or not 1 <= len(operands) <= 2:
        return None
    found.args = for_program
    found.target, found.source = (*operands, None)[:2]
    return found


def needs_no_packages(run: SimpleNamespace | None, script: SimpleNamespace | None = None) -> bool:
    """Whether the command needs no third-party packages: other languages and the network may need some."""
    if script is not None:
        return not (script.policy or script.allow_domain)
    return run is not None and run.target == "python" and not (run.policy or run.allow_domain or run.audit or run.image)


def read_sh(argv: list[str]) -> SimpleNamespace | None:
    """The arguments of `warmcell sh`, or None if argparse must parse them."""
    if argv[:1] != ["sh"] or "--" in argv:
        return None
    found = SimpleNamespace(
        args=[], timeout="30", memory=None, policy=None, allow_domain=[], env=[], write=False, json=False, quiet=False
    )
    operands = _read(argv[1:], found, _SH_OPTIONS)
    if operands is None or len(operands) != 1:
        return None
    (found.script,) = operands
    return found


def _read(words: list[str], found: SimpleNamespace, known: tuple[str, ...]) -> list[str] | None:
    """Set the `known` options and return the positional arguments; None if a word is neither."""
    operands: list[str] = []
    has_operands = False
    left = iter(words)
    for word in left:
        if word == "-" or not word.startswith("-"):
            if has_operands:
                return None
            operands.append(word)
            continue
        has_operands = bool(operands)
        option = "--code" if word == "-c" else word
        name = option[2:].replace("-", "_")
        if option not in known:
            return None
        if option in ("--json", "--write", "--quiet"):
            setattr(found, name, True)
        elif (value := next(left, "-")).startswith("-"):
            return None
        elif option in _LISTS:
            getattr(found, name).append(value)
        else:
            setattr(found, name, value)
    return operands


def split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and those after the first `--`, which are for the guest's program."""
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end], argv[end + 1 :]

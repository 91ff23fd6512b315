"""`allow_calls.py PROFILE PROGRAM ...`: runs the program behind a seccomp profile of containers. Started as a program."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.hosts.refuse_calls import _ALLOW, _ERRNO, _JUMP_IF_EQUAL, _LOAD, _NUMBER, _RETURN, install, instruction

from warmcell.cage.linux.syscalls import NUMBERS


def instructions(profile: dict[str, object]) -> list[bytes]:
    """The filter of a profile that only allows calls, as ours does."""
    code = [instruction(_LOAD, _NUMBER)]
    for rule in profile["syscalls"]:  # type: ignore[attr-defined]
        assert rule["action"] == "SCMP_ACT_ALLOW" and rule.keys() == {"names", "action"}
        for number in (NUMBERS[name] for name in rule["names"] if name in NUMBERS):
            code += [instruction(_JUMP_IF_EQUAL, number, if_false=1), instruction(_RETURN, _ALLOW)]
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    return [*code, instruction(_RETURN, _ERRNO | profile["defaultErrnoRet"])]  # type: ignore[operator]


if __name__ == "__main__":
    install(instructions(json.loads(Path(sys.argv[1]).read_text())))
    os.execvp(sys.argv[2], sys.argv[2:])

"""S2-09: guests are copies of a zygote, and nothing of a run is in its memory for a later one to find."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

import pytest
from tests.escape.harness import Cage

from warmcell.core.types import MIB, Limits
from warmcell.policy.builder import SandboxPolicyBuilder

pytestmark = pytest.mark.needs("linux", "user namespaces")

#: Looks through all memory of the process that can be read, for words that are put together only when all is copied.
SCAN = """
import sys
parts = sys.stdin.buffer.read().split(b'\\n')
found = [0] * len(parts)
places = [line.split() for line in open('/proc/self/maps')]
held = []
with open('/proc/self/mem', 'rb', buffering=0) as memory:
    for place in places:
        start, end = (int(number, 16) for number in place[0].split('-'))
        if 'r' in place[1] and not place[-1].startswith('[v') and end - start < 1 << 28:
            try:
                memory.seek(start)
                held.append(memory.read(end - start))
            except OSError:
                continue
for index, part in enumerate(parts):
    needle = part[::-1]  # it came turned round: where it is found, it was before
    found[index] = sum(piece.count(needle) for piece in held)
print(found)
"""


def _mark(name: str) -> str:
    return f"{name}{os.urandom(8).hex()}"


@pytest.mark.attack("S2-09")
@pytest.mark.claim("WC-LK-3")
def test_nothing_of_earlier_runs_is_in_a_guests_memory(cage: Cage, tmp_path: Path) -> None:
    """One zygote, warm: a path of the host and a variable of the policy, and all that single runs were given."""
    marks = {name: _mark(name) for name in ("host", "code", "input", "variable", "refused", "printed")}
    shared = tmp_path / marks["host"]
    shared.mkdir()
    policy = SandboxPolicyBuilder().allow_read(shared, at="/data").build()
    backend = cage.backend(policy)
    for _ in range(3):
        first = cage.run(
            f"import sys, os\nkept = '{marks['code']}'\nprint(sys.stdin.read(), '{marks['printed']}')\n"
            f"open('/{marks['refused']}')",
            backend=backend,
            stdin=marks["input"].encode(),
            env={"SOME_NAME": marks["variable"]},
        )
        assert marks["printed"] in first.stdout and first.result.exit_code == 1
    own = "site-packages"  # to be found: in every interpreter, and so is the proof that the scan finds anything
    turned = "\n".join(word[::-1] for word in (own, *marks.values()))
    counts = cage.run(SCAN, backend=backend, stdin=turned.encode(), timeout=20).stdout
    found = dict(zip(("own", *marks), eval(counts), strict=True))
    assert found.pop("own") > 0
    assert found == dict.fromkeys(marks, 0)


@pytest.mark.attack("S2-09")
@pytest.mark.claim("WC-LK-3")
def test_nothing_of_one_backend_is_in_the_memory_of_anothers_guests(cage: Cage, tmp_path: Path) -> None:
    """They share a zygote: no host path, variable or job of the one is in there for the other's."""
    marks = {name: _mark(name) for name in ("host", "variable", "code", "input")}
    shared = tmp_path / marks["host"]
    shared.mkdir()
    builder = SandboxPolicyBuilder().allow_read_write(shared, at="/work").env("NAME", marks["variable"])
    first = cage.backend(builder.allow_process_spawn().build())
    for _ in range(3):
        code = f"import sys; kept = '{marks['code']}', sys.stdin.read()"
        assert cage.run(code, backend=first, stdin=marks["input"].encode()).result.ok
    second = cage.backend()
    turned = "\n".join(word[::-1] for word in ("site-packages", *marks.values()))
    found = dict(zip(("own", *marks), eval(cage.run(SCAN, backend=second, stdin=turned.encode()).stdout), strict=True))
    assert first.zygote_pids == second.zygote_pids
    assert found.pop("own") > 0
    assert found == dict.fromkeys(marks, 0)


@pytest.mark.attack("S2-09")
@pytest.mark.claim("WC-LK-3")
def test_a_place_that_a_caller_named_is_unknown_to_anothers_guests(cage: Cage, tmp_path: Path) -> None:
    """Guests see it by that name, so it is in their zygote's memory, which is a twin that no other backend uses."""
    places = [tmp_path / _mark("place") for _ in range(2)]
    for place in places:
        place.mkdir()
    policies = (*(SandboxPolicyBuilder().allow_read(place).build() for place in places), None)
    backends = [cage.backend(policy) for policy in policies]
    turned = "\n".join(place.name[::-1] for place in places).encode()
    found = [eval(cage.run(SCAN, backend=backend, stdin=turned).stdout) for backend in (*backends, *backends)]
    assert [[count > 0 for count in counts] for counts in found] == [[True, False], [False, True], [False, False]] * 2
    assert backends[0].zygote_pids == backends[1].zygote_pids == backends[2].zygote_pids


@pytest.mark.attack("S3-13")
@pytest.mark.claim("WC-LK-3")
def test_limits_of_other_policies_are_not_in_a_guests_memory(cage: Cage) -> None:
    """Except those that SECURITY.md names, which are in the shape of a cell: the zygote needs them to build it."""
    values = {name: random.randrange(10**5, 10**6) for name in ("memory_mb", "cpu_seconds", "output_bytes")}
    small = {"disk_mb": random.randrange(1200, 1300), "open_files": 1931, "processes": 389}
    policy = SandboxPolicyBuilder().allow_process_spawn().limits(Limits(**values, **small)).build()
    first = cage.backend(policy)
    assert cage.run("print(1)", backend=first).result.ok
    words = {name: str(value) for name, value in values.items()}
    words |= {"memory_bytes": str(values["memory_mb"] * MIB), "shape": f"size={small['disk_mb'] * MIB + mmap.PAGESIZE}"}
    second = cage.backend()  # without cells made before
    turned = "\n".join(word[::-1] for word in words.values()).encode()
    found = dict(zip(words, eval(cage.run(SCAN, backend=second, stdin=turned).stdout), strict=True))
    assert first.zygote_pids == second.zygote_pids
    assert found.pop("shape") > 0, "SECURITY.md says that it is there"
    assert found == dict.fromkeys(found, 0)

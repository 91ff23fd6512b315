"""A waiting process drops only pages that the kernel can load again unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import warmcell.cage

_LOOK = """
import ctypes, json, sys
from types import ModuleType
package = ModuleType("cage")
package.__path__ = [sys.argv[1]]
sys.modules["cage"] = package
from cage.guest_entry import job

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[2])  # pages of files

places = job.find_file_pages()
with open("/proc/self/maps") as file:
    maps = [line.split() for line in file]
writable = [tuple(int(number, 16) for number in words[0].split("-")) for words in maps if "w" in words[1]]
overlaps = [place for place in places for start, end in writable if place[0] < end and start < sum(place)]
before = resident()
job.drop_pages(places)
after = resident()
print(json.dumps({"places": len(places), "overlaps": overlaps, "before": before, "after": after,
                  "still works": sorted({"a": 1, "b": 2}), "library": ctypes.CDLL(None).abs(-3)}))
"""


def test_dropped_pages_are_loaded_again() -> None:
    directory = str(Path(warmcell.cage.__path__[0]))
    said = subprocess.run([sys.executable, "-I", "-S", "-c", _LOOK, directory], capture_output=True, check=True)
    facts = json.loads(said.stdout)
    assert facts["places"] > 3 and facts["overlaps"] == []
    assert facts["after"] < facts["before"] * 0.75
    assert facts["still works"] == ["a", "b"] and facts["library"] == 3


_CHANGED = """
changed, place = [], ""
with open("/proc/self/smaps") as file:
    for line in file:
        words = line.split()
        if "-" in words[0] and len(words[1]) == 4:
            is_file = "w" not in words[1] and words[4] != "0"
            place = [int(number, 16) for number in words[0].split("-")] if is_file else []
        elif words[0] == "Anonymous:" and words[1] != "0" and place:
            changed.append(place)
print(json.dumps({"changed": changed, "places": places}))
raise SystemExit
"""


def test_relocated_data_is_not_dropped() -> None:
    """It is in a read-only mapping of a file, and differs from the file."""
    code = _LOOK.replace("job.drop_pages(places)", _CHANGED)
    command = [sys.executable, "-I", "-S", "-c", code, warmcell.cage.__path__[0]]
    facts = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert facts["changed"], "every library has some"
    for start, end in facts["changed"]:
        assert not [place for place in facts["places"] if place[0] < end and start < sum(place)]

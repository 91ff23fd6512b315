"""What the cage uses in place of modules of the standard library behaves the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from warmcell.cage import fast_imports
from warmcell.cage.watching.patterns import Pattern

VALUES = [{}, [], {"a": [1, -2.5, True, None], "b": {"c": '\u00e4\ud800\n"'}}, "text", 0, float("inf"), 1e300, 10**30]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_json_is_that_of_the_standard_module(value: object) -> None:
    text = fast_imports.write_json(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert fast_imports.read_json(text) == fast_imports.read_json(text.encode()) == json.loads(text)
    assert fast_imports.read_json_at("x" + text + "y", 1) == (value, len(text) + 1)


NO_JSON: list[str | bytes] = ["", "{", "{} {}", "[1,]", "nul", '{"a" 1}', '{"a', '["\\x"]', b"\xff", "'a'", "01"]


@pytest.mark.parametrize("text", NO_JSON)
def test_invalid_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        fast_imports.read_json(text)


@pytest.mark.parametrize(
    ("directory", "module"), [("src", "warmcell.cage.fast_imports"), ("src/warmcell/guest", "wasm.protocol")]
)
def test_invalid_json_is_a_value_error_without_the_json_module(repository: Path, directory: str, module: str) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(repository / directory)!r})
from {module} import read_json
for text in {[text if isinstance(text, bytes) else text.encode() for text in NO_JSON]!r}:
    assert "json" not in sys.modules or sys.version_info >= (3, 12)
    try:
        raise SystemExit(f"{{text!r}} is {{read_json(text)!r}}")
    except ValueError:
        pass
assert read_json(b'{{"a":[1]}}') == {{"a": [1]}}
"""
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def test_objects_that_json_cannot_represent_are_refused() -> None:
    with pytest.raises(TypeError):
        fast_imports.write_json({"a": object()})


def test_a_function_remembers_its_latest_results() -> None:
    asked = []
    twice = fast_imports.lru_cache(maxsize=2)(lambda number: asked.append(number) or 2 * number)  # type: ignore[func-returns-value]
    assert [twice(1), twice(1), twice(2), twice(3), twice(1)] == [2, 2, 4, 6, 2] and asked == [1, 2, 3, 1]


def test_a_pattern_is_of_lines() -> None:
    assert Pattern(r"^a(.)$").findall("ab\nac\nad ") == ["b", "c"]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="what we cannot do without brings more of them there")
def test_a_manager_loads_nothing_heavy() -> None:
    """From the standard library only what is written in C, and little else; zygotes load more when they have time."""
    cage = Path(fast_imports.__file__).parent
    code = (
        f"import sys; from types import ModuleType; cage = ModuleType('cage'); cage.__path__ = [{str(cage)!r}]\n"
        "sys.modules['cage'] = cage\n"
        "import cage.manager.start, cage.manager.loop, cage.zygote.loop, cage.watching.loop\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    heavy = {"re", "enum", "collections", "functools", "contextlib", "socket", "signal", "json", "typing", "threading"}
    assert "cage.watching.loop" in loaded and not loaded & heavy
    of_looks = {"cage.watching.ceilings", "cage.watching.usage"}
    assert not loaded & of_looks  # which most runs are too short for

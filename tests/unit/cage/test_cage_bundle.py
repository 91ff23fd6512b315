"""Modules from one file, or straight from `__pycache__`: used where they match the sources, ignored where not."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import ROOT

from warmcell.cage import bundle

PACKAGE = ROOT / "src/warmcell"

_LOAD = f"""
import importlib.util, sys, traceback
spec = importlib.util.spec_from_file_location("bundle", {str(PACKAGE / "cage/bundle.py")!r})
bundle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bundle)
sys.path.insert(0, sys.argv[1])
import small
bundle.use(sys.argv[1] + "/small", "small", "")
import small.inner.leaf as leaf
print(leaf.NAME, small.inner.leaf.__file__ == leaf.__file__, small.inner.__path__ == [sys.argv[1] + "/small/inner"])
try:
    leaf.fail()
except ZeroDivisionError as error:
    place = traceback.extract_tb(error.__traceback__)[-1]
    print(place.filename == leaf.__file__, place.line)
bundle.stop_using()
print(any(type(finder).__name__ in ("Bundle", "PycFinder") for finder in sys.meta_path))
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A package whose bundle was written from another text of the same length, to see what was loaded."""
    package = tmp_path / "small"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner/__init__.py").touch()
    source = "NAME = '{}'\n\ndef fail():\n    1 / 0\n"
    leaf = package / "inner/leaf.py"
    leaf.write_text(source.format("bundle"))
    bundle.write(str(package / bundle.NAME), str(package))
    leaf.write_text(source.format("source"))
    return package


def _load(small: Path, *options: str) -> list[str]:
    command = [sys.executable, "-I", "-S", *options, "-c", _LOAD, str(small.parent)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_bundled_module_behaves_like_its_source(small: Path) -> None:
    assert _load(small) == ["bundle True True", "True 1 / 0", "False"]


def test_modules_load_after_other_descriptors_were_closed(small: Path) -> None:
    """As the watcher does, which loads what a check needs when it makes one."""
    closing = "import os\n(kept,) = bundle.descriptors()\nos.closerange(3, kept), os.closerange(kept + 1, 64)\n"
    before, _, after = _LOAD.partition("import small.inner.leaf")
    command = [sys.executable, "-I", "-S", "-c", f"{before}{closing}import small.inner.leaf{after}", str(small.parent)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("bundle True True\n")


def _edit(small: Path) -> None:
    with (small / "inner/leaf.py").open("a") as file:
        file.write("\n")


def _edit_later(small: Path) -> None:
    later = time.time() + 3600
    os.utime(small / "inner/leaf.py", (later, later))


def _from_another_interpreter(small: Path) -> None:
    made = small / bundle.NAME
    made.write_bytes(b"\0\0\0\0" + made.read_bytes()[4:])


def _cut(small: Path) -> None:
    os.truncate(small / bundle.NAME, (small / bundle.NAME).stat().st_size - 40)


def _cut_short(small: Path) -> None:
    os.truncate(small / bundle.NAME, 14)


def _empty(small: Path) -> None:
    os.truncate(small / bundle.NAME, 0)


def _remove(small: Path) -> None:
    (small / bundle.NAME).unlink()


@pytest.mark.parametrize("change", [_edit, _edit_later, _from_another_interpreter, _cut, _cut_short, _empty, _remove])
def test_a_bundle_that_does_not_match_the_source_is_ignored(small: Path, change: object) -> None:
    assert callable(change)
    change(small)
    assert _load(small)[0] == "source True True"


def test_an_optimising_interpreter_ignores_the_bundle(small: Path) -> None:
    assert _load(small, "-O")[0] == "source True True"


def _compile_another_text(small: Path, mode: py_compile.PycInvalidationMode) -> Path:
    """Instead of a bundle: what `__pycache__` has is of another text, with the length and time of the source."""
    (small / bundle.NAME).unlink()
    leaf = small / "inner/leaf.py"
    source = leaf.read_text()
    leaf.write_text(source.replace("source", "cached"))
    state = leaf.stat()
    made = Path(py_compile.compile(str(leaf), doraise=True, invalidation_mode=mode) or "")
    leaf.write_text(source)
    os.utime(leaf, ns=(state.st_atime_ns, state.st_mtime_ns))
    return made


def test_without_a_bundle_modules_come_from_pycache(small: Path) -> None:
    _compile_another_text(small, py_compile.PycInvalidationMode.TIMESTAMP)
    assert _load(small) == ["cached True True", "True 1 / 0", "False"]


def test_code_that_is_checked_by_a_hash_is_left_to_python(small: Path) -> None:
    _compile_another_text(small, py_compile.PycInvalidationMode.CHECKED_HASH)
    assert _load(small)[0] == "source True True"


@pytest.mark.parametrize("head", [b"", b"\0" * 4, b"\0" * 16])
def test_files_of_pycache_that_are_not_whole_are_left_to_python(small: Path, head: bytes) -> None:
    made = _compile_another_text(small, py_compile.PycInvalidationMode.TIMESTAMP)
    made.write_bytes(head)
    assert _load(small)[0] == "source True True"


@pytest.mark.parametrize("change", [_edit, _edit_later])
def test_pycache_of_an_older_source_is_left_to_python(small: Path, change: object) -> None:
    assert callable(change)
    _compile_another_text(small, py_compile.PycInvalidationMode.TIMESTAMP)
    change(small)
    assert _load(small)[0] == "source True True"


@pytest.mark.needs("linux", "user namespaces")
def test_the_command_and_its_manager_load_from_it_and_guests_do_not_see_it(tmp_path: Path) -> None:
    """As in a wheel. What guests are called, and how a mistake is reported, differs in the file alone."""
    package = tmp_path / "warmcell"
    shutil.copytree(
        PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.wasm", "page", "ready_made", "modules.*.bin")
    )
    changed = {
        "cage/zygote/prepare.py": (r"\0main.py\0", r"\0mine.py\0"),
        "interfaces/cli/command_table.py": ("usage error", "USAGE ERROR"),
    }
    originals = {name: (package / name).read_text() for name in changed}
    for name, (old, new) in changed.items():
        assert old in originals[name], name
        (package / name).write_text(originals[name].replace(old, new))
    bundle.write(str(package / bundle.NAME), str(package), ("guest/",))
    for name, text in originals.items():
        (package / name).write_text(text)

    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}

    def output_of(*words: str) -> str:
        command = [sys.executable, str(ROOT / "bin/warmcell"), "run", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    look = "import sys; print([type(finder).__name__ for finder in sys.meta_path])"
    assert output_of("python", "-c", look) == "['type', 'type', 'type']\n"
    assert output_of("python", "-c", "print(open('/proc/self/cmdline').read().split(chr(0))[1])") == "mine.py\n"
    assert str(tmp_path) not in output_of("python", "-c", "print(open('/proc/self/maps').read())")
    assert "USAGE ERROR" in output_of("--help")

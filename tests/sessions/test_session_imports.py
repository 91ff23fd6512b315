"""What a new Python guest or session has imported, which a guest's own modules of the same name cannot replace."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from tests.helpers import until

from warmcell import Sandbox

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


def test_modules_that_the_session_does_not_need_are_not_imported() -> None:
    """They took a third of the time of its start."""
    with Sandbox() as sandbox, sandbox.session("python") as session:
        slow = ("bz2", "importlib.resources", "lzma", "random", "tempfile")
        assert session.run(f"import sys; sorted(set({slow!r}) & set(sys.modules))").value == "[]"
        sandbox.write_file("random.py", b"own = 1\n")
        assert session.run("import random; random.own").value == "1"


LOADER = "import sys; type(sys.modules['warmcell_live.agent'].__loader__).__module__"


def test_modules_that_the_zygote_has_loaded_are_hidden_from_guests_that_do_not_need_them() -> None:
    """The zygote loads the agent's modules for the second live cage. A guest's own modules still come first."""
    with ExitStack() as opened:
        sandboxes = [opened.enter_context(Sandbox(forkable=True)) for _ in range(3)]
        sessions = [sandbox.session("python") for sandbox in sandboxes]
        # Not of the last one alone: that zygote may have been replaced meanwhile.
        assert "'cage.zygote.live_modules'" in [session.run(LOADER).value for session in sessions[1:]]
        sandboxes[-1].write_file("pickle.py", b"own = 1\n")
        assert sessions[-1].run("import pickle; pickle.own").value == "1"
        sandboxes[-1].write_file("subprocess.py", b"own = 2\n")
        assert sandboxes[-1].run("import pickle, subprocess; print(pickle.own, subprocess.own)").stdout == "1 2\n"
        sessions[-2].run("import pickle, sys")
        opened.enter_context(sessions[-2].fork().sandbox)
        assert sessions[-2].run("sys.modules['pickle'] is pickle").value == "True"


def test_a_cage_gets_the_modules_of_the_agent_only_if_the_zygote_has_not_loaded_them() -> None:
    """All of them are there anyway: also those of sessions in other languages."""
    with ExitStack() as opened:
        sandboxes = [opened.enter_context(Sandbox()) for _ in range(3)]
        for sandbox in sandboxes:
            with sandbox.session("python") as session, sandbox.session("command") as shell:
                is_loaded = "cage.zygote" in session.run(LOADER).value
                assert shell.run("ls /code/live/modules").stdout == ("" if is_loaded else "/code/live/modules\n")


def test_what_many_programs_import_is_loaded_after_the_first_of_them() -> None:
    with Sandbox() as sandbox:
        look = "import sys; print('json' in sys.modules, 'typing' in sys.modules)"
        until(lambda: sandbox.run(look).stdout == "True True\n")

"""deepagents' own suite for sandboxes, from langchain-tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("deepagents")
pytest.importorskip("langchain_tests")

from langchain_tests.integration_tests.sandboxes import SandboxIntegrationTests

from warmcell.interfaces.seats.deepagents import WarmcellSandbox

#: langchain-tests 1.1 asks of every sandbox what deepagents 0.7's own base class, which does these, no longer does.
OUTDATED = """
    test_glob test_glob_basic_pattern test_glob_with_directories test_glob_hidden_files_explicitly
    test_glob_with_character_class test_glob_with_question_mark test_write_existing_file_fails
""".split()
#: Two tests call `python`, which a host may have under the name python3 alone.
PROGRAMS = "/work/.programs"


class TestTheirSuite(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[WarmcellSandbox]:
        made = WarmcellSandbox(env={"PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin"})
        assert made.execute(f"mkdir {PROGRAMS} && ln -s $(command -v python3) {PROGRAMS}/python").exit_code == 0
        yield made
        made.close()

    @pytest.fixture(autouse=True)
    def known(self, request: pytest.FixtureRequest) -> None:
        if request.node.originalname in OUTDATED:
            request.applymarker(pytest.mark.xfail(strict=True, reason="deepagents' own BaseSandbox does otherwise"))


def test_a_command_past_its_time_is_told() -> None:
    sandbox = WarmcellSandbox()
    try:
        for seconds in (1, 5, 25, 125):  # a starved host may not have printed by then
            told = sandbox.execute("echo begun; sleep 100000", timeout=seconds)
            if told.output.startswith("begun"):
                break
        assert told.exit_code == 124
        assert told.output.startswith("begun\n")
        assert sandbox.download_files(["relative"])[0].error == "invalid_path"
    finally:
        sandbox.close()

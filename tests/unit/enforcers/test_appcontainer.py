"""AppContainer: names, capabilities, grants and the command line as generated. Nothing here needs Windows."""

from __future__ import annotations

import ast
import ctypes
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import BackendUnavailable, EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.core.types import Limits
from warmcell.enforcers import appcontainer_launcher as launcher
from warmcell.enforcers.appcontainer import (
    INTERNET_CLIENT,
    LAUNCHER,
    PRIVATE_NETWORK,
    READ_ONLY_MASK,
    READ_WRITE_MASK,
    AppContainerEnforcer,
    ContainerPlan,
    Grant,
    command_line,
    container_plan,
    environment_block,
    grants,
    profile_name,
    quote_argument,
    windows_path,
)
from warmcell.enforcers.contract import SandboxEnforcer
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy

PYTHON = r"C:\Python\python.exe"
CLOSED = SandboxPolicy()


def split_command_line(line: str) -> list[str]:
    """CommandLineToArgvW as documented: the program ends at its closing quote, then the backslash rules."""
    assert line.startswith('"')
    program, _, rest = line[1:].partition('"')
    words: list[str] = []
    word, is_quoted, has_word, index = "", False, False, 0
    while index < len(rest):
        character = rest[index]
        if character == "\\":
            run = len(rest[index:]) - len(rest[index:].lstrip("\\"))
            index += run
            is_before_quote = index < len(rest) and rest[index] == '"'
            word += "\\" * (run // 2 if is_before_quote else run)
            has_word = True
            if is_before_quote and run % 2:
                word += '"'
                index += 1
            continue
        index += 1
        if character == '"':
            is_quoted, has_word = not is_quoted, True
        elif character in " \t" and not is_quoted:
            words += [word] if has_word else []
            word, has_word = "", False
        else:
            word, has_word = word + character, True
    return [program, *words, *([word] if has_word else [])]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", "back\\slash"),
        ("dir with space\\", r'"dir with space\\"'),
        ('\\"', r'"\\\""'),
        ("a\\\\ b", r'"a\\ b"'),
        ("tab\there", '"tab\there"'),
        ("ends in newline \\\n", '"ends in newline \\\n"'),
    ],
)
def test_quoting(word: str, text: str) -> None:
    assert quote_argument(word) == text


@given(st.lists(st.text(st.sampled_from('\\" \ta-/&|%^żé\n'))))
def test_the_words_come_back_as_they_were(words: list[str]) -> None:
    # \n is quoted too, although Windows would not split at it.
    assert split_command_line(command_line([PYTHON, *words])) == [PYTHON, *words]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_any_text_comes_back_as_it_was(words: list[str]) -> None:
    assert split_command_line(command_line([PYTHON, *words])) == [PYTHON, *words]


@pytest.mark.parametrize(
    "program",
    [
        "python",
        r"..\python.exe",
        r"\python.exe",
        "C:python.exe",
        r"\\server\share\x.exe",
        'C:\\a" b.exe',
        "",
        "C:\\a\nb.exe",
        "/bin/sh",
    ],
)
def test_a_program_must_be_absolute_and_free_of_quotes(program: str) -> None:
    with pytest.raises(InvalidRequest, match="program"):
        container_plan(program, [], CLOSED)


@pytest.mark.parametrize("program", [r"C:\x.bat", r"C:\x.CMD", r"C:\x.bat. "])
def test_batch_files_are_refused(program: str) -> None:
    with pytest.raises(InvalidRequest, match="batch"):
        container_plan(program, ["&calc"], CLOSED)


@pytest.mark.attack("PT-02")
def test_nul_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        container_plan(PYTHON, ["a\0b"], CLOSED)


def test_the_closed_policys_whole_plan() -> None:
    plan = container_plan(PYTHON, ["-c", "print(1)"], CLOSED)
    assert plan == ContainerPlan(
        profile=profile_name(CLOSED, plan.command_line),
        capabilities=(),
        grants=(),
        command_line=r'"C:\Python\python.exe" -c print(1)',
        environment="PATH=C:\\Windows\\System32\0SystemRoot=C:\\Windows\0\0",
        allow_children=False,
        memory_bytes=512 * 1024 * 1024,
        processes=1,
    )


def test_what_a_policy_adds() -> None:
    policy = SandboxPolicy(allow_network=True, allow_process_spawn=True, limits=Limits(memory_mb=64, processes=9))
    plan = container_plan(PYTHON, [], policy)
    assert plan.capabilities == (INTERNET_CLIENT, PRIVATE_NETWORK)
    assert (plan.allow_children, plan.processes, plan.memory_bytes) == (True, 9, 64 * 1024 * 1024)


def test_rules_by_domain_are_refused() -> None:
    with pytest.raises(EnforcerUnavailable, match="by domain"):
        container_plan(PYTHON, [], SandboxPolicy(network_rules=(NetworkRule("example.com"),)))


def test_grants_are_ordered_and_never_let_permissions_change() -> None:
    found = grants([AllowedPath("/C:/data/out", AccessMode.READ_WRITE), AllowedPath("/c:/data")])
    assert found == (Grant(r"C:\data", READ_ONLY_MASK), Grant(r"C:\data\out", READ_WRITE_MASK))
    write_dac, write_owner, write_data, delete = 0x40000, 0x80000, 0x2, 0x10000
    assert not READ_WRITE_MASK & (write_dac | write_owner)
    assert not READ_ONLY_MASK & (write_dac | write_owner | write_data | delete | 0x4 | 0x10 | 0x100)
    assert READ_WRITE_MASK & write_data and READ_WRITE_MASK & delete


@pytest.mark.parametrize(("path", "windows"), [("/C:/a b/c", r"C:\a b\c"), ("/d:", "D:\\"), ("/C:/ü", "C:\\ü")])
def test_paths_with_slashes_become_windows_paths(path: str, windows: str) -> None:
    assert windows_path(path) == windows


@pytest.mark.parametrize(
    "path", ["/etc", "/C:data", "/C:/a:stream", "/C:/a*", "/C:/a?", '/C:/a"', "/C:/a\n", "/CC:/a", "/server/share"]
)
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(PolicyViolation, match="not a Windows path"):
        windows_path(path)


def test_moved_paths_are_refused() -> None:
    with pytest.raises(PolicyViolation, match="cannot show"):
        grants([AllowedPath("/C:/a", guest_path="/C:/b")])


def test_a_profile_name_is_valid_and_belongs_to_one_run() -> None:
    names = {profile_name(CLOSED, "a"), profile_name(CLOSED, "b"), profile_name(SandboxPolicy(allow_network=True), "a")}
    assert len(names) == 3 and all(len(name) <= 64 and name.startswith("warmcell.") for name in names)
    assert profile_name(CLOSED, "a") == profile_name(SandboxPolicy(), "a")


def test_the_environment_is_only_what_was_given() -> None:
    block = environment_block({"path": r"D:\bin", "B": "2", "a": "1"})
    assert block.split("\0") == ["a=1", "B=2", r"path=D:\bin", r"SystemRoot=C:\Windows", "", ""]


def test_the_launcher_gets_the_plan_as_one_argument() -> None:
    enforcer = AppContainerEnforcer()
    assert isinstance(enforcer, SandboxEnforcer) and enforcer.name == "appcontainer"
    policy = SandboxPolicy(allowed_paths=(AllowedPath("/C:/data"),))
    command = enforcer.wrap_command(PYTHON, ["x"], policy)
    assert command.program == sys.executable and command.args[:2] == ("-I", str(LAUNCHER)) and len(command.args) == 3
    plan = json.loads(command.args[2])
    assert plan["grants"] == [{"path": r"C:\data", "mask": READ_ONLY_MASK}] and plan["capabilities"] == []
    assert enforcer.configure_command(command, policy)["env"] == {
        "SystemRoot": r"C:\Windows",
        "WARMCELL_CHILD": "1",
    }


def test_a_frozen_program_is_not_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(BackendUnavailable, match="frozen program"):
        AppContainerEnforcer().wrap_command(PYTHON, [], SandboxPolicy())


def test_it_works_on_windows_only() -> None:
    if sys.platform != "win32":
        with pytest.raises(EnforcerUnavailable, match="Windows only"):
            AppContainerEnforcer().probe()


def test_the_launcher_needs_the_standard_library_only() -> None:
    tree = ast.parse(Path(LAUNCHER).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {str(module).split(".")[0] for module in modules} <= {*sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("structure", "size"),
    [
        (launcher.SidAndAttributes, 16),
        (launcher.SecurityCapabilities, 24),
        (launcher.Trustee, 32),
        (launcher.ExplicitAccess, 48),
        (launcher.StartupInfo, 112),
        (launcher.ProcessInformation, 24),
        (launcher.JobLimits, 144),
    ],
)
def test_structures_have_the_sizes_of_64_bit_windows(structure: type[ctypes.Structure], size: int) -> None:
    if ctypes.sizeof(ctypes.c_void_p) == 8:
        assert ctypes.sizeof(structure) == size

"""Seatbelt: the profile as text, escaping, and what it refuses. Nothing here runs sandbox-exec."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.enforcers.contract import SandboxEnforcer
from warmcell.enforcers.seatbelt import ProfilePath, SeatbeltEnforcer, parents, quote, seatbelt_profile
from warmcell.policy.builder import SandboxPolicyBuilder
from warmcell.policy.model import NetworkRule, SandboxPolicy

CLOSED = SandboxPolicy()


def profile(policy: SandboxPolicy = CLOSED, *paths: ProfilePath) -> list[str]:
    return seatbelt_profile(policy, "/opt/py/bin/python3", paths).splitlines()


def read_string(text: str) -> tuple[str, str]:
    """Reads one quote string as the profile language does; gives it and what follows."""
    match = re.match(r'"((?:[^"\\]|\\.)*)"', text, re.DOTALL)
    assert match
    return re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL), text[match.end() :]


def forms(text: str) -> int:
    """How many top-level parenthesised forms there are, with strings read properly."""
    depth = count = 0
    while text:
        if text[0] == '"':
            _, text = read_string(text)
            continue
        depth += {"(": 1, ")": -1}.get(text[0], 0)
        assert depth >= 0
        count += text[0] == ")" and depth == 0
        text = text[1:]
    assert depth == 0
    return count


def test_everything_is_denied_first() -> None:
    assert profile()[:2] == ["(version 1)", "(deny default)"]


def test_the_empty_policy_opens_no_network_no_files_and_no_processes() -> None:
    text = "\n".join(profile())
    assert "network" not in text and "process-fork" not in text
    assert [line for line in profile() if "process-exec" in line] == [
        '(allow process-exec (literal "/opt/py/bin/python3"))'
    ]
    writable = [line for line in profile() if "file-write" in line]
    assert [re.findall(r'"(.*?)"', line) for line in writable] == [["/dev/null"], ["/dev/zero"]]
    for secret in ("/Users", "/private/tmp", "/private/var/folders", "/Library/Keychains", '(subpath "/")'):
        assert secret not in text


def test_allowing_processes_allows_fork_exec_and_signals_among_themselves() -> None:
    lines = profile(SandboxPolicy(allow_process_spawn=True))
    assert {"(allow process-fork)", "(allow process-exec)", "(allow signal (target same-sandbox))"} <= set(lines)
    assert "(allow signal (target self))" in profile()


def test_paths_allow_reading_and_only_writable_ones_writing() -> None:
    lines = profile(
        CLOSED,
        ProfilePath("/data", True, True),
        ProfilePath("/data/fixed", False, True),
        ProfilePath("/f", True, False),
    )
    rules = [line for line in lines if '"/data' in line or '"/f"' in line]
    assert rules == [
        '(allow file-read* (subpath "/data"))',
        '(allow file-write* (subpath "/data"))',
        '(deny file-write-unlink (literal "/data"))',
        '(allow file-read-metadata (literal "/data"))',
        '(allow file-read* (subpath "/data/fixed"))',
        '(deny file-write* (subpath "/data/fixed"))',
        '(allow file-read* (literal "/f"))',
        '(allow file-write* (literal "/f"))',
    ]


def test_the_network_is_opened_by_address_so_that_unix_sockets_stay_closed() -> None:
    lines = [line for line in profile(SandboxPolicy(allow_network=True)) if "network" in line]
    assert lines == [
        '(allow network-outbound (remote ip "*:*"))',
        '(allow network-inbound (local ip "*:*"))',
        '(allow network-bind (local ip "*:*"))',
        '(allow network-outbound (literal "/private/var/run/mDNSResponder"))',
    ]


@pytest.mark.parametrize("domain", ["localhost", "LOCALHOST", "127.0.0.1", "::1", "[::1]"])
def test_ports_of_this_machine_can_be_named(domain: str) -> None:
    policy = SandboxPolicy(network_rules=(NetworkRule(domain, (80, 8080)),))
    assert [line for line in profile(policy) if "network" in line] == [
        '(allow network-outbound (remote ip "localhost:80"))',
        '(allow network-outbound (remote ip "localhost:8080"))',
    ]


@pytest.mark.parametrize(
    "rule",
    [
        NetworkRule("example.com"),
        NetworkRule("*.localhost"),
        NetworkRule("192.0.2.1"),
        NetworkRule("localhost.example.com"),
        NetworkRule("localhost", methods=("GET",)),
        NetworkRule("localhost", path_prefixes=("/api",)),
    ],
)
def test_what_it_cannot_express_is_refused(rule: NetworkRule) -> None:
    with pytest.raises(EnforcerUnavailable, match="cannot enforce a rule"):
        profile(SandboxPolicy(network_rules=(rule,)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/a b", '"/a b"'),
        ('/a"b', '"/a\\"b"'),
        ("/a\\b", '"/a\\\\b"'),
        ('/a\\"b', '"/a\\\\\\"b"'),
        ('/x")) (allow default) ((', '"/x\\")) (allow default) (("'),
        ("/żółć/🦀", '"/żółć/🦀"'),
        ("/a;comment#|b", '"/a;comment#|b"'),
    ],
)
def test_escaping(path: str, text: str) -> None:
    assert quote(path) == text


@pytest.mark.parametrize("character", [chr(number) for number in (*range(32), 127)])
def test_control_characters_are_refused(character: str) -> None:
    with pytest.raises(PolicyViolation, match="control character"):
        quote(f"/a{character}b")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_a_string_is_read_back_as_it_was(text: str) -> None:
    assert read_string(quote(text)) == (text, "")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), max_size=4), st.booleans())
def test_no_path_adds_a_rule(names: list[str], writable: bool) -> None:
    paths = [ProfilePath("/" + name.replace("/", "_"), writable, True) for name in names]
    plain = [ProfilePath("/x", writable, True) for _ in names]
    assert forms("\n".join(profile(CLOSED, *paths))) == forms("\n".join(profile(CLOSED, *plain)))


def test_parents() -> None:
    assert parents("/a/b/c") == ["/a", "/a/b"] and parents("/a") == []


def test_it_is_an_enforcer_for_macos_only() -> None:
    enforcer = SeatbeltEnforcer()
    assert isinstance(enforcer, SandboxEnforcer) and enforcer.name == "seatbelt"
    if sys.platform != "darwin":
        with pytest.raises(EnforcerUnavailable, match="macOS only"):
            enforcer.probe()


def test_the_command_and_its_environment(tmp_path: Path) -> None:
    policy = SandboxPolicyBuilder().allow_read_write(tmp_path).env("K", "v").build()
    command = SeatbeltEnforcer().wrap_command("/bin/cat", ["-p", "--", "(allow default)"], policy)
    assert command.program == "/usr/bin/sandbox-exec" and command.args[0] == "-p"
    assert command.args[2:] == ("--", "/bin/cat", "-p", "--", "(allow default)")
    assert f'(allow file-write* (subpath "{tmp_path.resolve()}"))' in command.args[1]
    assert dict(command.env) == {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "K": "v"}
    assert SeatbeltEnforcer().configure_command(command, policy)["env"] == dict(command.env)


def test_missing_moved_and_relative_things_are_refused(tmp_path: Path) -> None:
    enforcer = SeatbeltEnforcer()
    with pytest.raises(PolicyViolation, match="cannot be allowed"):
        enforcer.wrap_command("/bin/cat", [], SandboxPolicyBuilder().allow_read(tmp_path / "nowhere").build())
    with pytest.raises(PolicyViolation, match="cannot show"):
        enforcer.wrap_command("/bin/cat", [], SandboxPolicyBuilder().allow_read(tmp_path, at="/data").build())
    with pytest.raises(InvalidRequest, match="program"):
        enforcer.wrap_command("-p", [], CLOSED)
    (tmp_path / "new\nline").mkdir()
    with pytest.raises(PolicyViolation, match="control character"):
        enforcer.wrap_command("/bin/cat", [], SandboxPolicyBuilder().allow_read(tmp_path / "new\nline").build())


def test_links_are_resolved_and_parents_come_first(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    policy = SandboxPolicyBuilder().allow_read(tmp_path / "real" / "sub").allow_read_write(tmp_path / "link").build()
    text = SeatbeltEnforcer().wrap_command("/bin/cat", [], policy).args[1]
    real = tmp_path.resolve() / "real"
    assert "/link" not in text.replace(str(tmp_path), "")
    assert text.index(f'(allow file-write* (subpath "{real}"))') < text.index(
        f'(deny file-write* (subpath "{real}/sub"))'
    )


@pytest.mark.attack("S2-02")
def test_directories_on_the_way_to_a_narrower_rule_cannot_be_moved(tmp_path: Path) -> None:
    (tmp_path / "project" / ".git" / "hooks").mkdir(parents=True)
    project = tmp_path.resolve() / "project"
    policy = SandboxPolicyBuilder().allow_read_write(project).allow_read(project / ".git" / "hooks").build()
    text = SeatbeltEnforcer().wrap_command("/bin/cat", [], policy).args[1]
    for directory in (project, project / ".git"):
        assert f'(deny file-write-unlink (literal "{directory}"))' in text
    assert text.rindex("file-write*") == text.index(f'file-write* (subpath "{project}/.git/hooks")')

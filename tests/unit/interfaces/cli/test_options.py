"""Option texts to values."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.core.types import Limits
from warmcell.interfaces.cli import main, options
from warmcell.interfaces.cli.exits import USAGE, UsageError
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "-inf", "1e308", "", "five", "5s", "True", "0x5"])
def test_bad_timeouts(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        options.seconds("--timeout", text)


def test_good_timeouts() -> None:
    assert options.seconds("--timeout", "1.5") == 1.5


@pytest.mark.attack("PT-04")
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "nan", "", "64MB", "9" * 13, "9" * 5000, "²"])
def test_bad_whole_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        options.whole_number("--memory", text, 1 << 20)


def test_good_whole_numbers() -> None:
    assert options.whole_number("--memory", "64", 1 << 20) == 64
    assert options.whole_number("--memory", None, 1 << 20) is None


def test_environment() -> None:
    assert options.environment(["A=1", "B=", "C=x=y"]) == {"A": "1", "B": "", "C": "x=y"}


@pytest.mark.parametrize(
    "pairs", [["A"], ["=x"], ["A=1", "A=2"], ["\udcc3\udca9=1", "\udcc3\udca9=2"], ["A=\udc80"], ["A=a\0b"]]
)
def test_bad_environment(pairs: list[str]) -> None:
    with pytest.raises((UsageError, InvalidRequest), match="--env"):
        options.environment(pairs)


def test_without_allow_options_the_default_policy_stays() -> None:
    assert options.policy([], [], []) is None


def test_allow_options_add_to_the_default(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    policy = options.policy([str(tmp_path)], [str(tmp_path / "out")], ["example.com", "*.x.org:8443"])
    assert policy is not None
    assert policy.allowed_paths == (
        AllowedPath(str(tmp_path)),
        AllowedPath(str(tmp_path / "out"), AccessMode.READ_WRITE),
    )
    assert policy.network_rules == (NetworkRule("example.com"), NetworkRule("*.x.org", (8443,)))
    assert policy.allow_process_spawn
    assert not policy.allow_network


@pytest.mark.parametrize(
    ("reads", "writes", "domains"),
    [
        (["/no/such/path"], [], []),
        ([], ["/no/such/path"], []),
        ([], [], ["a b"]),
        ([], [], ["x:0"]),
        (["/"], ["/"], []),
    ],
)
def test_what_cannot_be_allowed(reads: list[str], writes: list[str], domains: list[str]) -> None:
    with pytest.raises((UsageError, InvalidRequest, PolicyViolation)):
        options.policy(reads, writes, domains)


@pytest.mark.parametrize(
    ("text", "name", "ports"),
    [
        ("example.com", "example.com", (80, 443)),
        ("example.com:8443", "example.com", (8443,)),
        ("2001:db8::1", "2001:db8::1", (80, 443)),
        ("[2001:db8::1]:80", "[2001:db8::1]", (80,)),
    ],
)
def test_domains_with_ports(text: str, name: str, ports: tuple[int, ...]) -> None:
    assert options.domain_and_ports(text) == (name, ports)


def test_a_policy_file_means_what_it_says_and_options_add_to_it(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[limits]\nmemoryMb = 64")
    file = str(tmp_path / "p.toml")
    assert options.policy([], [], [], file) == SandboxPolicy(limits=Limits(memory_mb=64))
    wider = SandboxPolicy((AllowedPath(str(tmp_path)),), limits=Limits(memory_mb=64))
    assert options.policy([str(tmp_path)], [], [], file) == wider


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("allowNetworks = true", "line 1: allowNetworks: unknown key"),
        ('[[allowedPaths]]\npath = "/a"\nguestPath = "/code"', "which is reserved for the cage"),
        ("x", "not TOML"),
    ],
)
def test_a_bad_policy_file_is_wrong_usage(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        options.policy([], [], [], str(tmp_path / "p.toml"))
    assert caught.value.message.startswith("--policy: ") and words in caught.value.message


@pytest.mark.parametrize("option", [("--env", "A=\udcff"), ("--allow-domain", "no domain"), ("--allow-read", "/proc")])
def test_what_the_library_refuses_is_a_usage_error(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "python", "-c", "print(1)", *option]) == USAGE
    assert capsys.readouterr().err.startswith("error: ")

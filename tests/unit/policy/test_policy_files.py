"""A policy in a file: the same in TOML and JSON; errors name the field and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcell.core.errors import InvalidRequest, PolicyViolation
from warmcell.core.types import Limits
from warmcell.policy.model import AccessMode, AllowedPath, NetworkRule, SandboxPolicy

POLICY = SandboxPolicy(
    (AllowedPath("/data"), AllowedPath("/srv/results", AccessMode.READ_WRITE, "/results")),
    network_rules=(NetworkRule("example.com", (443,), ("GET",)),),
    allow_process_spawn=True,
    env={"A": "1"},
    limits=Limits(memory_mb=1024, cpu_seconds=2.5),
)
TOML = """
allowProcessSpawn = true
env = { A = "1" }
allowedPaths = [
    { path = "/data" },
    { path = "/srv/results", mode = "readWrite", guestPath = "/results" },
]

[[networkRules]]
domain = "example.com"
ports = [443]
methods = ["GET"]

[limits]
memoryMb = 1024
cpuSeconds = 2.5
"""


def written(directory: Path, name: str, text: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    assert SandboxPolicy.from_file(written(tmp_path, "p.toml", TOML)) == POLICY
    assert SandboxPolicy.from_file(str(written(tmp_path, "p.JSON", POLICY.to_json()))) == POLICY


@pytest.mark.parametrize("name", ["empty.toml", "empty.json"])
def test_an_empty_file_denies_everything(tmp_path: Path, name: str) -> None:
    text = "" if name.endswith("toml") else "{}"
    assert SandboxPolicy.from_file(written(tmp_path, name, text)) == SandboxPolicy()


@pytest.mark.parametrize(
    ("name", "text", "field", "says"),
    [
        ("p.toml", "a = 1\nb = = 2\n", "policy", "line 2"),
        ("p.json", '{"allowNetwork":\n oops}', "policy", "line 2"),
        ("p.toml", "env = {}\nallowNetworks = true", "allowNetworks", "line 2: allowNetworks: unknown key"),
        ("p.json", '{\n"allowNetwork": "yes"}', "allowNetwork", "line 2: allowNetwork: must be true or false"),
        (
            "p.toml",
            '[[allowedPaths]]\npath = "/a"\nmode = "rw"',
            "allowedPaths[0].mode",
            "line 3: allowedPaths[0].mode",
        ),
        ("p.toml", '[[allowedPaths]]\nmode = "readOnly"', "allowedPaths[0].path", "allowedPaths[0].path: is required"),
        ("p.toml", "[limits]\nmemoryMb = 0", "limits.memoryMb", "line 2: limits.memoryMb: must be between"),
        ("p.toml", '[[networkRules]]\ndomain = "x.org"\nports = 80', "networkRules[0].ports", "must be a list"),
        ("p.toml", "[env]\nA = 1", "env", "line 1: env: must be text"),
        ("p.json", "[]", "policy", "expected an object"),
        ("p.json", b"\xff", "policy", "utf-8"),
        ("p.yaml", "", "policy", ".toml or .json"),
    ],
    ids=repr,
)
def test_errors_name_the_field_and_the_line(
    tmp_path: Path, name: str, text: str | bytes, field: str, says: str
) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(InvalidRequest) as caught:
        SandboxPolicy.from_file(path)
    assert caught.value.field == field
    assert says in str(caught.value) and str(path) in str(caught.value)


def test_a_key_that_stands_in_several_places_has_no_line(tmp_path: Path) -> None:
    path = written(tmp_path, "p.toml", '[[allowedPaths]]\npath = "/a"\n[[allowedPaths]]\npath = 5')
    with pytest.raises(InvalidRequest, match=r"p.toml': allowedPaths\[1\].path: must be text"):
        SandboxPolicy.from_file(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[allowedPaths]]\npath = "data"', "line 1: allowedPaths[0]: path must be absolute"),
        ('[[networkRules]]\ndomain = "http://x"', "line 1: networkRules[0]: 'http://x' is not a domain"),
        ('[[allowedPaths]]\npath = "/a"\nguestPath = "/code"', "which is reserved for the cage"),
        ('allowNetwork = true\nnetworkRules = [{ domain = "x.org" }]', "not both"),
    ],
)
def test_contradictions_are_policy_violations(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, "p.toml", text)
    with pytest.raises(PolicyViolation) as caught:
        SandboxPolicy.from_file(path)
    assert says in str(caught.value) and str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such file"):
        SandboxPolicy.from_file(tmp_path / "missing.toml")
    with pytest.raises(InvalidRequest, match="is a directory"):
        (tmp_path / "d.toml").mkdir()
        SandboxPolicy.from_file(tmp_path / "d.toml")
    with pytest.raises(InvalidRequest, match="larger than"):
        SandboxPolicy.from_file(written(tmp_path, "big.json", b" " * (1024 * 1024 + 1)))

"""Every public name is there, is typed, and costs nothing until it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import warmcell

ROOT = Path(__file__).resolve().parents[2]
DESIGNED = """
    Language ExecRequest ExecResult Usage Enforced Denial SandboxBackend BackendCapabilities EnforcedLimits
    ProcessBackend ProcessConfig WasmBackend FakeBackend SandboxPolicy SandboxPolicyBuilder AllowedPath
    AccessMode NetworkRule Limits SandboxEnforcer get_enforcer SandboxTool Sandbox AsyncSandbox MountPoint
    FsChange DirEntry FetchPolicy FetchRequest FetchResponse SafeClient SecretRef run arun errors get_backend
    SandboxError ExecutionTimeout MemoryExceeded ExecutionFailed InvalidRequest BackendUnavailable
    EnforcerFailed EnforcerUnavailable PolicyViolation ProvisionFailed SessionNotFound SnapshotNotFound
    PathTraversal SessionTimeout SessionBusy SandboxDestroyed CommandNotFound NetworkingDisabled FetchFailed
    FuelExhausted BackendBusy BuildFailed SessionEnded ImageNotFound ImageInvalid
    SnapshotInvalid WorkspaceNotFound Change CommitReport Conflict
"""


@pytest.mark.parametrize("name", warmcell.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(warmcell, name) is not None
    assert name in dir(warmcell)


def test_the_designed_names_are_public() -> None:
    assert set(DESIGNED.split()) <= set(warmcell.__all__)


def test_type_checkers_see_the_same_names_in_the_same_places() -> None:
    tree = ast.parse((ROOT / "src/warmcell/__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: part.module
        for part in block.body
        if isinstance(part, ast.ImportFrom)
        for alias in part.names
        if alias.name != "errors"
    }
    assert seen == warmcell._HOME_OF


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sandbocks'"):
        warmcell.Sandbocks  # type: ignore[attr-defined]  # noqa: B018


def test_errors_are_one_tree_under_two_names() -> None:
    from warmcell import errors
    from warmcell.core import errors as tree
    from warmcell.workspace import errors as added

    assert warmcell.errors is errors
    for name in errors.__all__:
        assert getattr(errors, name) is getattr(tree, name, None) or getattr(errors, name) is getattr(added, name)
        assert issubclass(getattr(errors, name), tree.SandboxError)


def test_importing_the_package_imports_nothing_else() -> None:
    script = "import sys; import warmcell; print(*[m for m in sys.modules if m.startswith('warmcell')])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["warmcell"]


def test_images_are_there_without_a_further_import() -> None:
    code = "import warmcell; print(warmcell.images.ImageStore.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "ImageStore\n"

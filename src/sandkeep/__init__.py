"""Sandkeep runs code that you did not write.

Every public name is importable from here. Modules load on first use, so that `import sandkeep` costs nothing and
`sandkeep run` never pays for WebAssembly or HTTP.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, without importing that
if TYPE_CHECKING:
    from sandkeep import errors as errors
    from sandkeep.backends.fake import FakeBackend as FakeBackend
    from sandkeep.backends.process import ProcessBackend as ProcessBackend
    from sandkeep.backends.registry import get_backend as get_backend
    from sandkeep.backends.wasm import WasmBackend as WasmBackend
    from sandkeep.core.contracts import SandboxBackend as SandboxBackend
    from sandkeep.core.contracts import SandboxEnforcer as SandboxEnforcer
    from sandkeep.core.contracts import WrappedCommand as WrappedCommand
    from sandkeep.core.types import BackendCapabilities as BackendCapabilities
    from sandkeep.core.types import Denial as Denial
    from sandkeep.core.types import Enforced as Enforced
    from sandkeep.core.types import EnforcedLimits as EnforcedLimits
    from sandkeep.core.types import ExecRequest as ExecRequest
    from sandkeep.core.types import ExecResult as ExecResult
    from sandkeep.core.types import Language as Language
    from sandkeep.core.types import Limits as Limits
    from sandkeep.core.types import Usage as Usage
    from sandkeep.enforcers.registry import get_enforcer as get_enforcer
    from sandkeep.errors import BackendUnavailable as BackendUnavailable
    from sandkeep.errors import CommandNotFound as CommandNotFound
    from sandkeep.errors import EnforcerFailed as EnforcerFailed
    from sandkeep.errors import EnforcerUnavailable as EnforcerUnavailable
    from sandkeep.errors import ExecutionFailed as ExecutionFailed
    from sandkeep.errors import ExecutionTimeout as ExecutionTimeout
    from sandkeep.errors import FetchFailed as FetchFailed
    from sandkeep.errors import FuelExhausted as FuelExhausted
    from sandkeep.errors import InvalidRequest as InvalidRequest
    from sandkeep.errors import MemoryExceeded as MemoryExceeded
    from sandkeep.errors import NetworkingDisabled as NetworkingDisabled
    from sandkeep.errors import PathTraversal as PathTraversal
    from sandkeep.errors import PolicyViolation as PolicyViolation
    from sandkeep.errors import ProvisionFailed as ProvisionFailed
    from sandkeep.errors import SandboxDestroyed as SandboxDestroyed
    from sandkeep.errors import SandboxError as SandboxError
    from sandkeep.errors import SessionBusy as SessionBusy
    from sandkeep.errors import SessionNotFound as SessionNotFound
    from sandkeep.errors import SessionTimeout as SessionTimeout
    from sandkeep.errors import SnapshotNotFound as SnapshotNotFound
    from sandkeep.interfaces.tool import SandboxTool as SandboxTool
    from sandkeep.languages.config import ProcessConfig as ProcessConfig
    from sandkeep.net import FetchPolicy as FetchPolicy
    from sandkeep.net import FetchRequest as FetchRequest
    from sandkeep.net import FetchResponse as FetchResponse
    from sandkeep.net import RateLimit as RateLimit
    from sandkeep.net import SafeClient as SafeClient
    from sandkeep.net import SecretRef as SecretRef
    from sandkeep.oneshot import arun as arun
    from sandkeep.oneshot import run as run
    from sandkeep.policy.builder import SandboxPolicyBuilder as SandboxPolicyBuilder
    from sandkeep.policy.model import AccessMode as AccessMode
    from sandkeep.policy.model import AllowedPath as AllowedPath
    from sandkeep.policy.model import NetworkRule as NetworkRule
    from sandkeep.policy.model import SandboxPolicy as SandboxPolicy
    from sandkeep.sandbox import AsyncSandbox as AsyncSandbox
    from sandkeep.sandbox import DirEntry as DirEntry
    from sandkeep.sandbox import FsChange as FsChange
    from sandkeep.sandbox import MountPoint as MountPoint
    from sandkeep.sandbox import Sandbox as Sandbox

#: Where each public name lives. `tests/arch/test_public_names.py` holds this table and the block above together.
_HOMES: dict[str, tuple[str, ...]] = {
    "sandkeep.backends.fake": ("FakeBackend",),
    "sandkeep.backends.process": ("ProcessBackend",),
    "sandkeep.backends.registry": ("get_backend",),
    "sandkeep.backends.wasm": ("WasmBackend",),
    "sandkeep.core.contracts": ("SandboxBackend", "SandboxEnforcer", "WrappedCommand"),
    "sandkeep.core.types": (
        "BackendCapabilities",
        "Denial",
        "Enforced",
        "EnforcedLimits",
        "ExecRequest",
        "ExecResult",
        "Language",
        "Limits",
        "Usage",
    ),
    "sandkeep.enforcers.registry": ("get_enforcer",),
    "sandkeep.errors": (
        "BackendUnavailable",
        "CommandNotFound",
        "EnforcerFailed",
        "EnforcerUnavailable",
        "ExecutionFailed",
        "ExecutionTimeout",
        "FetchFailed",
        "FuelExhausted",
        "InvalidRequest",
        "MemoryExceeded",
        "NetworkingDisabled",
        "PathTraversal",
        "PolicyViolation",
        "ProvisionFailed",
        "SandboxDestroyed",
        "SandboxError",
        "SessionBusy",
        "SessionNotFound",
        "SessionTimeout",
        "SnapshotNotFound",
    ),
    "sandkeep.interfaces.tool": ("SandboxTool",),
    "sandkeep.languages.config": ("ProcessConfig",),
    "sandkeep.net": ("FetchPolicy", "FetchRequest", "FetchResponse", "RateLimit", "SafeClient", "SecretRef"),
    "sandkeep.oneshot": ("arun", "run"),
    "sandkeep.policy.builder": ("SandboxPolicyBuilder",),
    "sandkeep.policy.model": ("AccessMode", "AllowedPath", "NetworkRule", "SandboxPolicy"),
    "sandkeep.sandbox": ("AsyncSandbox", "DirEntry", "FsChange", "MountPoint", "Sandbox"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "errors"])


if not TYPE_CHECKING:  # a type checker that saw this would accept any name at all

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "errors":
            return import_module("sandkeep.errors")
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'sandkeep' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

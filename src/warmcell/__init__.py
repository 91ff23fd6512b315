"""Warmcell runs code that you did not write.

Every public name is importable from here. Modules load on first use: `import warmcell` loads nothing else, and
`warmcell run` loads neither WebAssembly nor HTTP code.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as in `typing`, without importing it
if TYPE_CHECKING:
    from warmcell import errors as errors
    from warmcell.backends.built import Program as Program
    from warmcell.backends.fake import FakeBackend as FakeBackend
    from warmcell.backends.process.backend import ProcessBackend as ProcessBackend
    from warmcell.backends.ray.backend import RayBackend as RayBackend
    from warmcell.backends.ray.placement import Node as Node
    from warmcell.backends.registry import get_backend as get_backend
    from warmcell.backends.wasm.backend import WasmBackend as WasmBackend
    from warmcell.changes.model import Change as Change
    from warmcell.changes.model import CommitReport as CommitReport
    from warmcell.changes.model import Conflict as Conflict
    from warmcell.core.contracts import SandboxBackend as SandboxBackend
    from warmcell.core.output_events import Outcome as Outcome
    from warmcell.core.output_events import OutputEvent as OutputEvent
    from warmcell.core.output_events import ResultEvent as ResultEvent
    from warmcell.core.types import BackendCapabilities as BackendCapabilities
    from warmcell.core.types import Connection as Connection
    from warmcell.core.types import Denial as Denial
    from warmcell.core.types import Enforced as Enforced
    from warmcell.core.types import EnforcedLimits as EnforcedLimits
    from warmcell.core.types import ExecRequest as ExecRequest
    from warmcell.core.types import ExecResult as ExecResult
    from warmcell.core.types import Language as Language
    from warmcell.core.types import Limits as Limits
    from warmcell.core.types import Usage as Usage
    from warmcell.enforcers.contract import SandboxEnforcer as SandboxEnforcer
    from warmcell.enforcers.contract import WrappedCommand as WrappedCommand
    from warmcell.enforcers.registry import get_enforcer as get_enforcer
    from warmcell.errors import BackendBusy as BackendBusy
    from warmcell.errors import BackendUnavailable as BackendUnavailable
    from warmcell.errors import BuildFailed as BuildFailed
    from warmcell.errors import CommandNotFound as CommandNotFound
    from warmcell.errors import EnforcerFailed as EnforcerFailed
    from warmcell.errors import EnforcerUnavailable as EnforcerUnavailable
    from warmcell.errors import ExecutionFailed as ExecutionFailed
    from warmcell.errors import ExecutionTimeout as ExecutionTimeout
    from warmcell.errors import FetchFailed as FetchFailed
    from warmcell.errors import FuelExhausted as FuelExhausted
    from warmcell.errors import ImageInvalid as ImageInvalid
    from warmcell.errors import ImageNotFound as ImageNotFound
    from warmcell.errors import InvalidRequest as InvalidRequest
    from warmcell.errors import MemoryExceeded as MemoryExceeded
    from warmcell.errors import NetworkingDisabled as NetworkingDisabled
    from warmcell.errors import NodeLost as NodeLost
    from warmcell.errors import PathTraversal as PathTraversal
    from warmcell.errors import PolicyViolation as PolicyViolation
    from warmcell.errors import ProvisionFailed as ProvisionFailed
    from warmcell.errors import SandboxDestroyed as SandboxDestroyed
    from warmcell.errors import SandboxError as SandboxError
    from warmcell.errors import SessionBusy as SessionBusy
    from warmcell.errors import SessionEnded as SessionEnded
    from warmcell.errors import SessionNotFound as SessionNotFound
    from warmcell.errors import SessionTimeout as SessionTimeout
    from warmcell.errors import SnapshotInvalid as SnapshotInvalid
    from warmcell.errors import SnapshotNotFound as SnapshotNotFound
    from warmcell.errors import WorkspaceNotFound as WorkspaceNotFound
    from warmcell.evaluation.evaluate import aevaluate as aevaluate
    from warmcell.evaluation.evaluate import evaluate as evaluate
    from warmcell.evaluation.summary import Summary as Summary
    from warmcell.interfaces.client.client import AsyncClient as AsyncClient
    from warmcell.interfaces.client.client import Client as Client
    from warmcell.interfaces.recording import Recorder as Recorder
    from warmcell.interfaces.tool import SandboxTool as SandboxTool
    from warmcell.judging.judge import ajudge as ajudge
    from warmcell.judging.judge import judge as judge
    from warmcell.judging.verdicts import Case as Case
    from warmcell.judging.verdicts import Verdict as Verdict
    from warmcell.languages.config import ProcessConfig as ProcessConfig
    from warmcell.net import FetchPolicy as FetchPolicy
    from warmcell.net import FetchRequest as FetchRequest
    from warmcell.net import FetchResponse as FetchResponse
    from warmcell.net import RateLimit as RateLimit
    from warmcell.net import SafeClient as SafeClient
    from warmcell.net import SecretRef as SecretRef
    from warmcell.policy.builder import SandboxPolicyBuilder as SandboxPolicyBuilder
    from warmcell.policy.model import AccessMode as AccessMode
    from warmcell.policy.model import AllowedPath as AllowedPath
    from warmcell.policy.model import NetworkRule as NetworkRule
    from warmcell.policy.model import SandboxPolicy as SandboxPolicy
    from warmcell.sandbox.blocking import AsyncSandbox as AsyncSandbox
    from warmcell.sandbox.blocking import DirEntry as DirEntry
    from warmcell.sandbox.blocking import FsChange as FsChange
    from warmcell.sandbox.blocking import MountPoint as MountPoint
    from warmcell.sandbox.blocking import Sandbox as Sandbox
    from warmcell.sandbox.oneshot import arun as arun
    from warmcell.sandbox.oneshot import run as run
    from warmcell.sandbox.ports import AsyncExposedPort as AsyncExposedPort
    from warmcell.sandbox.ports import ExposedPort as ExposedPort
    from warmcell.sandbox.processes import AsyncProcess as AsyncProcess
    from warmcell.sandbox.processes import Process as Process
    from warmcell.sandbox.processes import ProcessInfo as ProcessInfo
    from warmcell.sandbox.processes import PtySize as PtySize
    from warmcell.sandbox.session import AsyncCheckpoint as AsyncCheckpoint
    from warmcell.sandbox.session import AsyncSession as AsyncSession
    from warmcell.sandbox.session import Checkpoint as Checkpoint
    from warmcell.sandbox.session import Session as Session
    from warmcell.sessions.cell_results import CellError as CellError
    from warmcell.sessions.cell_results import CellResult as CellResult
    from warmcell.sessions.cell_results import DisplayData as DisplayData
    from warmcell.workspace.file_watch import FileEvent as FileEvent

#: The module of each public name. `tests/arch/test_public_names.py` compares it with the block above.
_HOMES: dict[str, tuple[str, ...]] = {
    "warmcell.backends.built": ("Program",),
    "warmcell.backends.fake": ("FakeBackend",),
    "warmcell.backends.process.backend": ("ProcessBackend",),
    "warmcell.backends.ray.backend": ("RayBackend",),
    "warmcell.backends.ray.placement": ("Node",),
    "warmcell.backends.registry": ("get_backend",),
    "warmcell.backends.wasm.backend": ("WasmBackend",),
    "warmcell.changes.model": ("Change", "CommitReport", "Conflict"),
    "warmcell.core.contracts": ("SandboxBackend",),
    "warmcell.enforcers.contract": ("SandboxEnforcer", "WrappedCommand"),
    "warmcell.core.output_events": ("Outcome", "OutputEvent", "ResultEvent"),
    "warmcell.core.types": tuple(
        "BackendCapabilities Connection Denial Enforced EnforcedLimits ExecRequest ExecResult"
        " Language Limits Usage".split()
    ),
    "warmcell.enforcers.registry": ("get_enforcer",),
    "warmcell.errors": tuple(
        "BackendBusy BackendUnavailable BuildFailed CommandNotFound EnforcerFailed EnforcerUnavailable"
        " ExecutionFailed ExecutionTimeout FetchFailed FuelExhausted ImageInvalid ImageNotFound InvalidRequest"
        " MemoryExceeded NetworkingDisabled NodeLost PathTraversal PolicyViolation ProvisionFailed SandboxDestroyed"
        " SandboxError SessionBusy SessionEnded SessionNotFound SessionTimeout SnapshotInvalid SnapshotNotFound"
        " WorkspaceNotFound".split()
    ),
    "warmcell.evaluation.evaluate": ("aevaluate", "evaluate"),
    "warmcell.evaluation.summary": ("Summary",),
    "warmcell.interfaces.client.client": ("AsyncClient", "Client"),
    "warmcell.interfaces.recording": ("Recorder",),
    "warmcell.interfaces.tool": ("SandboxTool",),
    "warmcell.judging.judge": ("ajudge", "judge"),
    "warmcell.judging.verdicts": ("Case", "Verdict"),
    "warmcell.languages.config": ("ProcessConfig",),
    "warmcell.net": ("FetchPolicy", "FetchRequest", "FetchResponse", "RateLimit", "SafeClient", "SecretRef"),
    "warmcell.sandbox.oneshot": ("arun", "run"),
    "warmcell.policy.builder": ("SandboxPolicyBuilder",),
    "warmcell.policy.model": ("AccessMode", "AllowedPath", "NetworkRule", "SandboxPolicy"),
    "warmcell.sandbox.ports": ("AsyncExposedPort", "ExposedPort"),
    "warmcell.sandbox.processes": ("AsyncProcess", "Process", "ProcessInfo", "PtySize"),
    "warmcell.sandbox.session": ("AsyncCheckpoint", "AsyncSession", "Checkpoint", "Session"),
    "warmcell.sessions.cell_results": ("CellError", "CellResult", "DisplayData"),
    "warmcell.workspace.file_watch": ("FileEvent",),
    "warmcell.sandbox.blocking": ("AsyncSandbox", "DirEntry", "FsChange", "MountPoint", "Sandbox"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "errors"])


if "WARMCELL_CHILD" in os.environ:  # set for interpreters that we start, which never import this
    os.write(2, b"this program is not a Python interpreter, but Warmcell started it as one\n")
    os._exit(125)

if not TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in ("errors", "images"):
            return import_module(f"warmcell.{name}")
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'warmcell' has no attribute {name!r}")
        try:
            value = getattr(import_module(home), name)
        except (ImportError, AttributeError) as error:
            from warmcell.core.platform_support import explain_platform

            raise (explain_platform(error) or error) from None
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

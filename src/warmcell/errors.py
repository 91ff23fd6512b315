"""The error tree under its public name: `warmcell.core.errors`, and the errors of the workspace."""

from warmcell.core.errors import BackendBusy as BackendBusy
from warmcell.core.errors import BackendUnavailable as BackendUnavailable
from warmcell.core.errors import BuildFailed as BuildFailed
from warmcell.core.errors import CommandNotFound as CommandNotFound
from warmcell.core.errors import EnforcerFailed as EnforcerFailed
from warmcell.core.errors import EnforcerUnavailable as EnforcerUnavailable
from warmcell.core.errors import ExecutionFailed as ExecutionFailed
from warmcell.core.errors import ExecutionTimeout as ExecutionTimeout
from warmcell.core.errors import FetchFailed as FetchFailed
from warmcell.core.errors import FuelExhausted as FuelExhausted
from warmcell.core.errors import ImageInvalid as ImageInvalid
from warmcell.core.errors import ImageNotFound as ImageNotFound
from warmcell.core.errors import InvalidRequest as InvalidRequest
from warmcell.core.errors import MemoryExceeded as MemoryExceeded
from warmcell.core.errors import NetworkingDisabled as NetworkingDisabled
from warmcell.core.errors import NodeLost as NodeLost
from warmcell.core.errors import PathTraversal as PathTraversal
from warmcell.core.errors import PolicyViolation as PolicyViolation
from warmcell.core.errors import ProvisionFailed as ProvisionFailed
from warmcell.core.errors import SandboxDestroyed as SandboxDestroyed
from warmcell.core.errors import SandboxError as SandboxError
from warmcell.core.errors import SessionBusy as SessionBusy
from warmcell.core.errors import SessionEnded as SessionEnded
from warmcell.core.errors import SessionNotFound as SessionNotFound
from warmcell.core.errors import SessionTimeout as SessionTimeout
from warmcell.core.errors import SnapshotInvalid as SnapshotInvalid
from warmcell.core.errors import SnapshotNotFound as SnapshotNotFound
from warmcell.core.errors import WorkspaceNotFound as WorkspaceNotFound
from warmcell.workspace.errors import AccessDenied as AccessDenied
from warmcell.workspace.errors import AlreadyExists as AlreadyExists
from warmcell.workspace.errors import ArchiveRejected as ArchiveRejected
from warmcell.workspace.errors import FileMissing as FileMissing
from warmcell.workspace.errors import LimitExceeded as LimitExceeded
from warmcell.workspace.errors import PatchRejected as PatchRejected
from warmcell.workspace.errors import WorkspaceError as WorkspaceError
from warmcell.workspace.errors import WrongKind as WrongKind

__all__ = [name for name in dir() if name[0].isupper()]

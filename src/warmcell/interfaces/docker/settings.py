"""DockerSettings: what the operator decides when the socket is opened."""

from __future__ import annotations

from dataclasses import dataclass, field

from warmcell.core.types import Limits
from warmcell.policy.model import SandboxPolicy

#: For containers that name no limits. Docker has none by default; images are large, and so are their test suites.
DEFAULT_LIMITS = Limits(memory_mb=4096, processes=1024, open_files=4096, disk_mb=8192)


@dataclass(frozen=True, slots=True)
class DockerSettings:
    socket: str
    #: The most that a container can have: limits, the host directories that it may bind, and its network.
    ceiling: SandboxPolicy = field(default_factory=SandboxPolicy)
    containers: int = 64
    #: Capabilities that a client asks for are left out, with a warning, in place of a refusal.
    ignores_capabilities: bool = False
    #: stdout and stderr of `exec` are one stream, named stdout, in the order in which they were written.
    joins_exec_output: bool = False
    #: The image store; None: the user's.
    store: str | None = None

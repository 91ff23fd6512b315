"""A host with GPUs that are not there: nodes are /dev/null, libraries are ordinary files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from warmcell.enforcers.gpus import HostTree
from warmcell.policy.gpu import NVIDIA, GpuDriver

LIBRARIES = "/opt/driver/lib"


def driver(numbers: Iterable[int] = (0, 1), **fields: object) -> GpuDriver:
    """What would be found on a host with these devices. Guests can open the nodes."""
    given: dict[str, object] = {
        "vendor": NVIDIA,
        "devices": tuple((number, (("/dev/null", f"/dev/nvidia{number}"),)) for number in numbers),
        "shared_nodes": (("/dev/null", "/dev/nvidiactl"), ("/dev/zero", "/dev/nvidia-uvm")),
    }
    return GpuDriver(**{**given, **fields})  # type: ignore[arg-type]


class Tree:
    """A directory that looks like a host's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cached: list[str] = []
        self.closed: list[str] = []

    def add(self, *paths: str, text: str = "") -> Tree:
        for path in paths:
            place = self.root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return self

    def add_libraries(self, *paths: str) -> Tree:
        """Libraries that the loader finds by itself."""
        self.cached += paths
        return self.add(*paths)

    @property
    def host(self) -> HostTree:
        return HostTree(str(self.root), lambda: self.cached, lambda node: node not in self.closed)

    def path(self, path: str) -> str:
        return str(self.root / path.lstrip("/"))

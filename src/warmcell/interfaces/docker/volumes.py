"""Volumes: private directories that containers share by name. They live as long as the server."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmcell.core.timestamps import rfc3339
from warmcell.interfaces.docker.messages import DockerError
from warmcell.workspace.remove import remove_directory

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_MAX_VOLUMES = 256


@dataclass(slots=True)
class Volume:
    name: str
    path: str
    labels: Mapping[str, str]
    created: float = field(default_factory=time.time)

    def describe(self) -> dict[str, Any]:
        return {
            "Name": self.name,
            "Driver": "local",
            "Mountpoint": self.path,
            "Labels": dict(self.labels),
            "Options": None,
            "Scope": "local",
            "CreatedAt": rfc3339(self.created),
        }


class Volumes:
    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "volumes")
        self.all: dict[str, Volume] = {}

    def create(self, name: str, labels: Mapping[str, str]) -> Volume:
        """A new one, or the one that has this name."""
        name = name or secrets.token_hex(32)
        if name in self.all:
            return self.all[name]
        if not _NAME.fullmatch(name):
            raise DockerError(400, f"create {name[:80]}: the volume name includes invalid characters")
        if len(self.all) >= _MAX_VOLUMES:
            raise DockerError(409, f"there are {_MAX_VOLUMES} volumes, the most allowed; remove some")
        path = os.path.join(self._directory, name)
        os.makedirs(path, 0o700)
        self.all[name] = Volume(name, path, labels)
        return self.all[name]

    def use(self, name: str) -> str:
        """The directory of a volume, made if it is new. "": one without a name."""
        return self.create(name, {}).path

    def get(self, name: str) -> Volume:
        if name not in self.all:
            raise DockerError(404, f"get {name[:128]}: no such volume")
        return self.all[name]

    def remove(self, name: str) -> None:
        """Blocking."""
        path = self.get(name).path
        del self.all[name]
        remove_directory(path)

"""BuildState: an image during its build, as plain data. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from warmcell.core.records import dataclass, field, replace
from warmcell.images.build.cache import BuiltLayer
from warmcell.images.build.steps import SHELL
from warmcell.images.layers import distinct_layers
from warmcell.images.manifests import Descriptor, check_layer_count, own_architecture

_ADDED_UP = ("Labels", "ExposedPorts", "Volumes")
#: The creation time of an image without layers.
_NO_TIME = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class BuildState:
    """Layers, lowest first, and the configuration in the OCI format."""

    #: The unpacked layers, by their ids in the store.
    trees: tuple[str, ...] = ()
    diff_ids: tuple[str, ...] = ()
    blobs: tuple[Descriptor, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()
    created: str = _NO_TIME

    @property
    def env(self) -> dict[str, str]:
        pairs = (text.partition("=") for text in self.config.get("Env") or ())
        return {name: value for name, _, value in pairs}

    @property
    def workdir(self) -> str:
        return posixpath.join("/", self.config.get("WorkingDir") or "/")

    @property
    def user(self) -> str:
        return self.config.get("User") or ""

    @property
    def shell(self) -> tuple[str, ...]:
        return tuple(self.config.get("Shell") or SHELL)

    @property
    def distinct_trees(self) -> tuple[str, ...]:
        return distinct_layers(self.trees)

    def configure(self, fields: Mapping[str, Any]) -> BuildState:
        """Set fields. Labels, ports and volumes are added to the existing ones; None removes a field."""
        config = dict(self.config)
        for key, value in fields.items():
            is_added = key in _ADDED_UP and value is not None
            config[key] = {**(config.get(key) or {}), **value} if is_added else value
        return replace(self, config={key: value for key, value in config.items() if value is not None})

    def with_env(self, variables: Mapping[str, str]) -> BuildState:
        env = {**self.env, **variables}
        return self.configure({"Env": [f"{name}={value}" for name, value in env.items()]})

    def add(self, built: BuiltLayer | None, text: str) -> BuildState:
        """Append a step's layer, if it has one, and record the step in the history."""
        note: dict[str, Any] = {"created_by": text}
        if built is None or built.diff_id is None or built.blob is None:
            return replace(self, history=(*self.history, {**note, "empty_layer": True}))
        check_layer_count((*self.diff_ids, built.diff_id))
        return replace(
            self,
            trees=(*self.trees, built.diff_id),
            diff_ids=(*self.diff_ids, built.diff_id),
            blobs=(*self.blobs, built.blob),
            history=(*self.history, {**note, "created": built.created}),
            created=built.created,
        )

    def document(self) -> dict[str, Any]:
        """The image's configuration document."""
        return {
            "architecture": own_architecture(),
            "os": "linux",
            "created": self.created,
            "config": dict(self.config),
            "rootfs": {"type": "layers", "diff_ids": list(self.diff_ids)},
            "history": [dict(entry) for entry in self.history],
        }


def base_state(
    document: Mapping[str, Any], diff_ids: Sequence[str], blobs: Sequence[Descriptor], trees: Sequence[str]
) -> BuildState:
    """The state that corresponds to an image in the store."""
    return BuildState(
        trees=tuple(trees),
        diff_ids=tuple(diff_ids),
        blobs=tuple(blobs),
        config=document.get("config") or {},
        history=_history(document, len(diff_ids)),
        created=str(document.get("created") or _NO_TIME),
    )


def _history(document: Mapping[str, Any], layers: int) -> tuple[Mapping[str, Any], ...]:
    """The history if it matches the number of layers, else a substitute: other tools refuse a mismatch."""
    found = document.get("history")
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    if sum(not entry.get("empty_layer") for entry in entries) == layers:
        return tuple(entries)
    return tuple({"created_by": "unknown"} for _ in range(layers))

"""ImageStore: images below one directory, shared by all programs of this user.

    names/NAME.json     the digest that a name stands for
    images/DIGEST/      one image: `image.json`, and a lock that its users share
    layers/DIFF_ID/     one unpacked layer
    blobs/DIGEST        manifests, configurations and original layers, for `export`

The directory itself is locked: shared by programs that add images, exclusively by `prune`. A running program also
holds a lock on its image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal

from warmcell.core.errors import ExecutionFailed, FetchFailed, ImageNotFound, InvalidRequest
from warmcell.core.light import Closing
from warmcell.core.records import replace
from warmcell.images.blobs import BlobStore
from warmcell.images.export import Exporter
from warmcell.images.layers import LayerSource, LayerStore, distinct_layers
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.manifests import Manifest, check_platform, diff_ids, parse_manifest, require_object
from warmcell.images.model import Image, parse_config, parse_created
from warmcell.images.progress import OnProgress
from warmcell.images.prune import collect_garbage, explain_full_disk
from warmcell.images.records import Records, StoreParts
from warmcell.images.references import Reference, is_digest, parse_reference
from warmcell.images.sources import SourceReader
from warmcell.images.store_access import check_access, explain_access
from warmcell.images.unpack import WhiteoutsUnsupported
from warmcell.lifetime.held_directories import (
    UNFINISHED_LAYERS,
    HeldDirectory,
    hold,
    make_cache,
    user_cache,
    wait_to_hold,
)
from warmcell.workspace.private_directory import sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.images.progress import OnBuildProgress
    from warmcell.policy.model import SandboxPolicy

_PATIENCE_SECONDS = 60.0
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
AnyPath = str | os.PathLike[str]


class ImageLease(Closing):
    """While it is open, `remove` and `prune` leave the image's layers in place. A context manager."""

    def __init__(self, held: HeldDirectory) -> None:
        self._held = held

    def close(self) -> None:
        """May be called twice."""
        self._held.release()


class ImageStore:
    """The images of this user. Without a path: below the user's cache directory. Blocking; safe to share.

    `mirrors` has, by registry, hosts to pull from first: `{"docker.io": ["mirror.example.com"]}`.
    """

    def __init__(
        self,
        path: AnyPath | None = None,
        *,
        limits: ImageLimits | None = None,
        mirrors: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path)) if path is not None else os.path.join(user_cache(), "images")
        self._limits = limits or ImageLimits()
        self._mirrors = dict(mirrors or {})
        self._blobs = BlobStore(os.path.join(self.path, "blobs"))
        self._layers = LayerStore(os.path.join(self.path, "layers"))
        self._records = Records(self.path)

    def import_(self, path: AnyPath, name: str | None = None, *, on_progress: OnProgress | None = None) -> Image:
        """Add an image from a file or directory, all or nothing.

        An OCI layout (directory or tar), a `docker save` archive, or a root file system (directory or tar); tar files
        may be compressed. The default name is the one in the archive, or the file's name.
        """
        where = os.fspath(path)
        if not os.path.exists(where):
            raise InvalidRequest(f"{where!r} does not exist", field="path")
        if not os.access(where, os.R_OK):
            raise InvalidRequest(f"cannot read {where!r}: permission denied", field="path")
        wanted = parse_reference(name).name if name is not None else None
        with self.adding():
            source = SourceReader(self._blobs, self._limits, on_progress).read(where, wanted)
            return self.add_image(source.manifest, wanted or _name_of(where, source.name), on_progress)

    def pull(
        self,
        reference: str,
        *,
        username: str | None = None,
        password: str | None = None,
        plain_http: bool = False,
        on_progress: OnProgress | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> Image:
        """Fetch an image from its registry, all or nothing. Blobs that the store has are not fetched again.

        The store's mirrors of that registry are tried first, without the credentials. `plain_http` is for a registry on
        this machine. `check` is called several times a second while the registry does not answer: it may raise to end
        the pull, and must not block.
        """
        from warmcell.images.registry import Registry, pull_blobs

        found = parse_reference(reference)
        credentials = None if username is None else (username, password or "")
        mirrors = self._mirrors_of(found)
        make = partial(Registry, check=check)
        registries = [make(host, found.repository, None, plain_http=is_plain) for host, is_plain in mirrors]
        registries.append(make(found.registry, found.repository, credentials, plain_http=plain_http))
        with self.adding():
            for number, registry in enumerate(registries, 1):
                try:
                    digest = pull_blobs(registry, found, self._blobs, Budget(self._limits), on_progress)
                    break
                except (FetchFailed, ImageNotFound):
                    if number == len(registries):
                        raise
            return self.add_image(digest, found.name, on_progress)

    def build(
        self,
        context_dir: AnyPath,
        dockerfile: AnyPath = "Dockerfile",
        *,
        name: str | None = None,
        build_args: Mapping[str, str] | None = None,
        target: str | None = None,
        policy: SandboxPolicy | None = None,
        on_progress: OnBuildProgress | None = None,
        uses_cache: bool = True,
    ) -> Image:
        """Build an image from a Dockerfile, which is below the context unless its path is absolute.

        Commands run in a cage, with the network rules, limits and variables of the policy; without one they have no
        network. `target` is the stage to build. The default name is that of the directory. `BuildFailed` has the step
        and its output; layers of the steps before it stay in the cache.
        """
        from warmcell.images.build.builder import BuildOptions
        from warmcell.images.build.from_dockerfile import build_dockerfile

        context = os.fspath(context_dir)
        wanted = parse_reference(name).name if name is not None else _name_of(context, None)
        options = BuildOptions(policy=policy, on_progress=on_progress, uses_cache=uses_cache)
        with self.adding() as parts:
            find, path = lambda text: self.get(text).digest, os.fspath(dockerfile)
            return self.add_image(
                build_dockerfile(parts, find, context, path, build_args or {}, target, options), wanted
            )

    def _mirrors_of(self, reference: Reference) -> Iterator[tuple[str, bool]]:
        """Yield the host of each mirror, and whether it uses plain HTTP."""
        for mirror in self._mirrors.get(reference.registry, ()):
            scheme, separator, host = mirror.rpartition("://")
            if separator and scheme not in ("http", "https"):
                raise InvalidRequest(f"{mirror!r} is not a registry", field="mirrors", hint="write HOST or http://HOST")
            yield host, scheme == "http"

    def get(self, reference: str) -> Image:
        """The image of a name, or of a digest (`sha256:...`)."""
        with explain_access(self.path):
            return self._image(*self._find(reference))

    def list(self) -> list[Image]:
        """Every named image, by name."""
        found = []
        with explain_access(self.path):
            for name, digest in sorted(self._records.names().items()):
                with suppress(ImageNotFound):  # its record is damaged, or was removed just now
                    found.append(self._image(name, digest))
        return found

    def names_of(self, digest: str) -> tuple[str, ...]:
        """Every name of an image, sorted. Unlike `list` it reads no configurations, which may have megabytes each."""
        with explain_access(self.path):
            return tuple(sorted(name for name, found in self._records.names().items() if found == digest))

    def tag(self, reference: str, name: str) -> Image:
        """Give an image another name. If another image has that name, it loses it."""
        new = parse_reference(name).name
        with self.adding():
            _, digest = self._find(reference)
            self._records.set_name(new, digest)
            return self._image(new, digest)

    def export(self, reference: str, path: AnyPath, format: Literal["oci", "docker"] = "oci") -> None:
        """Write an image for other tools: an OCI layout, or a `docker save` archive.

        A layout is a tar file if the path ends in ".tar", else a directory. `InvalidRequest` if the path exists.
        """
        if format not in ("oci", "docker"):
            raise InvalidRequest(f"unknown format {format!r}", field="format", hint='use "oci" or "docker"')
        image = self.get(reference)
        with self.lease(image):
            exporter = Exporter(self._blobs, self._layers)
            write = exporter.write_layout if format == "oci" else exporter.write_docker
            with explain_full_disk(os.path.dirname(os.path.abspath(path))), explain_access(self.path):
                write(image.digest, image.name, os.fspath(path))

    def remove(self, reference: str) -> int:
        """Remove a name, or all names of a digest. Returns the bytes freed.

        Data that no other name and no running program uses is removed at once, or by the next `prune` if another
        program is adding an image.
        """
        with explain_access(self.path):
            name, digest = self._find(reference)
            for other, found in self._records.names().items():
                if other == name or (is_digest(reference) and found == digest):
                    self._records.remove_name(other)
        try:
            with explain_access(self.path), self._lock(is_shared=False, waits=False):
                freed = collect_garbage(self._records, self._layers, self._blobs)
        except ExecutionFailed:
            return 0
        self.sweep()
        return freed

    def prune(self) -> int:
        """Remove everything that no name and no running program uses; returns the bytes freed."""
        with explain_access(self.path), self._lock(is_shared=False):
            freed = collect_garbage(self._records, self._layers, self._blobs)
        self.sweep()
        return freed

    def sweep(self) -> None:
        """Remove layers that were set aside, and layers and blobs that killed programs have left unfinished."""
        sweep(self._layers.path, UNFINISHED_LAYERS)
        self._blobs.sweep()

    def lease(self, image: Image) -> ImageLease:
        """Keep the layers of an image in place until the lease is closed."""
        held = hold(self._records.image_directory(image.digest), is_shared=True)
        if held is None:
            raise ImageNotFound(image.name, hint="it was removed: import or pull it again")
        return ImageLease(held)

    def add_image(self, manifest_digest: str, name: str, on_progress: OnProgress | None = None) -> Image:
        """Unpack an image whose blobs are in the store, and name it. Call it within `adding`."""
        manifest = parse_manifest(self._blobs.read_json(manifest_digest))
        config = require_object(self._blobs.read_json(manifest.config.digest), "the configuration")
        architecture = check_platform(config)
        parse_config(require_object(config.get("config") or {}, "config"))
        layers = self._unpack(manifest, diff_ids(config, len(manifest.layers)), on_progress)
        record = {
            "created": config.get("created"),
            "config": config.get("config") or {},
            "layers": layers,
            "size": sum(self._layers.size(diff_id) for diff_id in layers),
            "architecture": architecture,
            "blobs": [manifest_digest, manifest.config.digest, *(layer.digest for layer in manifest.layers)],
        }
        self._records.put_image(manifest_digest, record)
        self._records.set_name(name, manifest_digest)
        return self._image(name, manifest_digest)

    def _unpack(self, manifest: Manifest, ids: Sequence[str], on_progress: OnProgress | None) -> tuple[str, ...]:
        """Unpack each layer, or all merged into one where the file system does not support whiteouts."""
        sources = [
            LayerSource(diff_id, partial(self._blobs.open, layer.digest), layer.size)
            for diff_id, layer in zip(ids, manifest.layers, strict=True)
        ]
        try:
            budget = Budget(self._limits)
            return tuple(self._layers.add([source], budget, on_progress) for source in sources)
        except WhiteoutsUnsupported:
            merged = [replace(source, is_merged=True) for source in sources]
            return (self._layers.add(merged, Budget(self._limits), on_progress),)

    def owners(self, image: Image) -> tuple[dict[str, tuple[int, int, int]], ...]:
        """For each of `layer_paths`: uid, gid and mode, by path, of entries whose unpacked files have others."""
        return tuple(map(self._layers.owners, distinct_layers(self._records.image(image.digest)["layers"])))

    def _find(self, reference: str) -> tuple[str, str]:
        """Name and digest."""
        names = self._records.names()
        if isinstance(reference, str) and is_digest(reference):
            name = next((name for name, digest in sorted(names.items()) if digest == reference), reference)
            if self._records.has_image(reference):
                return name, reference
            raise ImageNotFound(reference)
        parsed = parse_reference(reference)
        if parsed.name in names:
            return parsed.name, names[parsed.name]
        if parsed.digest and self._records.has_image(parsed.digest):
            return parsed.name, parsed.digest
        hint = f"`warmcell image pull {parsed.name}` fetches it; `image list` shows what is here"
        raise ImageNotFound(reference, hint=hint)

    def _image(self, name: str, digest: str) -> Image:
        record: dict[str, Any] = self._records.image(digest)
        return Image(
            name=name,
            digest=digest,
            size=record["size"],
            created=parse_created(record["created"]),
            config=parse_config(record["config"]),
            layer_paths=tuple(map(self._layers.tree, distinct_layers(record["layers"]))),
            architecture=record["architecture"],
        )

    @contextmanager
    def adding(self) -> Iterator[StoreParts]:
        """Hold the shared lock for code that adds images: meanwhile nothing is removed from the store."""
        with explain_full_disk(self.path), explain_access(self.path), self._lock(is_shared=True):
            yield StoreParts(self.path, self._blobs, self._layers, self._records, self._limits)

    @contextmanager
    def _lock(self, *, is_shared: bool, waits: bool = True) -> Iterator[None]:
        make_cache(self.path)
        if os.stat(self.path).st_uid != os.geteuid():
            hint = "run as that user, or use another directory"
            raise InvalidRequest(f"the image store {self.path!r} belongs to another user", field="path", hint=hint)
        check_access(self.path)
        what = f"another program is {'removing images' if is_shared else 'adding an image'} in {self.path}"
        failure = ExecutionFailed(what, hint="try again when it has finished")
        with wait_to_hold(self.path, _PATIENCE_SECONDS if waits else 0, failure, is_shared=is_shared):
            yield


def _name_of(path: str, found: str | None) -> str:
    """A name for an image that the caller did not name."""
    stem = os.path.basename(os.path.abspath(path)).lower().split(".")[0]
    base = _NOT_IN_NAMES.sub("-", stem).strip("-") or "image"
    if found is None:
        return f"{base}:latest"
    try:
        return parse_reference(found if ":" in found or "/" in found else f"{base}:{found}").name
    except InvalidRequest:
        return f"{base}:latest"

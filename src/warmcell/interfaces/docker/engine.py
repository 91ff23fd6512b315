"""Engine: the state that the handlers share: images, containers, volumes, events. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import ImageNotFound, SandboxError
from warmcell.core.timestamps import rfc3339
from warmcell.core.types import Limits
from warmcell.images import Image, ImageStore
from warmcell.interfaces.docker.container import Container, ExecProcess
from warmcell.interfaces.docker.container_cage import ContainerCage
from warmcell.interfaces.docker.container_spec import BRIDGE, DEFAULT_LIMITS, ContainerSpec, Mount, check_name
from warmcell.interfaces.docker.image_work import ImageWork
from warmcell.interfaces.docker.messages import DockerError
from warmcell.interfaces.docker.output_log import EventLog
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.policy.places import is_within
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import remove_directory

#: The most memory for the descriptions of all containers, which clients sent.
_MAX_DESCRIPTION_BYTES = 64 << 20
_SHORT_ID = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})")
_VOLUME_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_MAX_VOLUMES = 256
#: The label that Docker gives to volumes without a name.
ANONYMOUS = "com.docker.volume.anonymous"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DockerSettings:
    socket: str
    #: The most that a container may have: limits, host directories to bind, and network.
    ceiling: SandboxPolicy = field(default_factory=SandboxPolicy)
    containers: int = 64
    #: Requested capabilities are ignored with a warning, instead of refused.
    ignores_capabilities: bool = False
    #: stdout and stderr of `exec` are one stream, named stdout, in the order in which they were written.
    joins_exec_output: bool = False
    #: The image store; None: the user's.
    store: str | None = None


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
    """Private directories that containers share by name. They live as long as the server."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "volumes")
        self.all: dict[str, Volume] = {}

    def create(self, name: str, labels: Mapping[str, str]) -> Volume:
        """Make a volume, or return the one with this name."""
        if not name:
            name, labels = secrets.token_hex(32), {**labels, ANONYMOUS: ""}
        if name in self.all:
            return self.all[name]
        if not _VOLUME_NAME.fullmatch(name):
            raise DockerError(400, f"create {name[:80]}: the volume name includes invalid characters")
        if len(self.all) >= _MAX_VOLUMES:
            raise DockerError(409, f"there are {_MAX_VOLUMES} volumes, the most allowed; remove some")
        path = os.path.join(self._directory, secrets.token_hex(16))  # that of a removed one may still exist
        os.makedirs(path, 0o700)
        self.all[name] = Volume(name, path, labels)
        return self.all[name]

    def get(self, name: str) -> Volume:
        if name not in self.all:
            raise DockerError(404, f"get {name[:128]}: no such volume")
        return self.all[name]

    async def remove(self, name: str) -> None:
        """Remove a volume. From now on another one can have its name."""
        path = self.get(name).path
        del self.all[name]
        await in_thread(partial(remove_directory, path))


class Engine:
    """Create it in the event loop that serves the socket, and close it there."""

    def __init__(self, settings: DockerSettings) -> None:
        self.settings = settings
        self.store = ImageStore(settings.store)
        self.events = EventLog()
        self.containers: dict[str, Container] = {}
        self._names: dict[str, str] = {}
        #: Descriptions of the containers that are being created.
        self._creating: list[ContainerSpec] = []
        self._description_bytes = 0
        self.directory = PrivateDirectory("serve")
        self.image_work = ImageWork(self.directory.path, self.store.path)
        self.volumes = Volumes(self.directory.path)
        self.started = time.time()
        self.id = secrets.token_hex(16)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to its end, even if its client disconnects."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its client may have disconnected

    # ---- images ----

    async def find_image(self, reference: str) -> Image:
        """Find an image by name, by digest, or by the start of a digest."""
        return await in_thread(lambda: self._find_image(reference))

    def _find_image(self, reference: str) -> Image:
        short = _SHORT_ID.fullmatch(reference)
        try:
            return self.store.get(reference)
        except ImageNotFound:
            images = {} if short is None else {image.digest: image for image in self.store.list()}
            found = [images[digest] for digest in images if short and digest.startswith(f"sha256:{short[1]}")]
            if len(found) == 1:
                return found[0]
            raise DockerError(404, f"No such image: {reference[:300]}") from None

    def users_of(self, image: Image) -> list[Container]:
        return [container for container in self.containers.values() if container.image.digest == image.digest]

    # ---- containers ----

    def find(self, reference: str) -> Container:
        """Find a container by id, by name, or by the start of an id."""
        name = reference.removeprefix("/")
        identity = self._names.get(name, name)
        if identity in self.containers:
            return self.containers[identity]
        found = [identity for identity in self.containers if name and identity.startswith(name)]
        if len(found) > 1:
            raise DockerError(400, f"Multiple IDs found with provided prefix: {name[:64]}")
        if not found:
            raise DockerError(404, f"No such container: {name[:200]}")
        return self.containers[found[0]]

    def find_exec(self, identity: str) -> tuple[Container, ExecProcess]:
        for container in self.containers.values():
            if identity in container.execs:
                return container, container.execs[identity]
        raise DockerError(404, f"No such exec instance: {identity[:80]}")

    async def create(self, name: str, spec: ContainerSpec, image: Image) -> Container:
        name = check_name(name) if name else f"cell_{secrets.token_hex(4)}"
        self._check_room(spec)
        self._reserve(name, "")
        self._description_bytes += spec.size
        spec, own_volumes = name_volumes(spec)
        self._creating.append(spec)
        try:
            policy = self._policy(spec)
            backend = await in_thread(
                lambda: ProcessBackend(policy=policy, image=image, user=spec.user), discard=lambda made: made.close()
            )
        except BaseException:
            del self._names[name]
            self._description_bytes -= spec.size
            await self._remove_volumes(own_volumes)
            raise
        finally:
            self._creating.remove(spec)
        container = Container(name, spec, image, ContainerCage(backend, spec.env), self._emit)
        container.own_volumes = own_volumes
        self.containers[container.id], self._names[name] = container, container.id
        container.emit("create")
        return container

    def _check_room(self, spec: ContainerSpec) -> None:
        """Check the limits for all containers. Counts reserved names: many requests may be in progress at once."""
        most = self.settings.containers
        if len(self._names) >= most:
            raise DockerError(409, f"there are {most} containers, the most allowed; remove some (docker rm)")
        if self._description_bytes + spec.size > _MAX_DESCRIPTION_BYTES:
            reason = f"the descriptions of all containers take {_MAX_DESCRIPTION_BYTES >> 20} MiB, the most allowed"
            raise DockerError(409, f"{reason}; remove some (docker rm)")

    def _reserve(self, name: str, identity: str) -> None:
        if name in self._names:
            owner = self._names[name][:12]
            message = f'Conflict. The container name "/{name}" is already in use by container "{owner}".'
            raise DockerError(409, f"{message} You have to remove (or rename) that container to be able to reuse it.")
        self._names[name] = identity

    def rename(self, container: Container, name: str) -> None:
        self._reserve(check_name(name), container.id)
        del self._names[container.name]
        container.name = name
        container.emit("rename")

    async def start(self, container: Container) -> bool:
        """Start a container. Return False if it runs already. With AutoRemove, one that cannot start is removed."""
        try:
            return await container.start()
        except (DockerError, SandboxError):
            if container.spec.is_auto_removed and not container.is_removed:
                await self.remove(container)
            raise

    async def remove(self, container: Container) -> None:
        """End the container, free its name, and remove its unnamed volumes."""
        if container.is_removed:
            raise DockerError(409, f"removal of container {container.id[:12]} is already in progress")
        await container.remove()
        await self._remove_volumes(container.own_volumes)
        self._names.pop(container.name, None)
        if self.containers.pop(container.id, None) is not None:
            self._description_bytes -= container.spec.size

    async def _remove_volumes(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.volumes.all:
                await self.volumes.remove(name)

    def is_mounted(self, volume: str) -> bool:
        """Whether a container has the volume, or will have it once it has been created."""
        specs = [*self._creating, *(container.spec for container in self.containers.values())]
        return any(mount.is_volume and mount.source == volume for spec in specs for mount in spec.mounts)

    def _emit(self, container: Container, action: str, attributes: dict[str, str]) -> None:
        labels = {"image": container.spec.image_name, "name": container.name, **container.spec.labels}
        self.events.add("container", action, container.id, {**labels, **attributes})
        is_over = action == "die" and not container.restarts
        if is_over and container.spec.is_auto_removed and not container.is_removed:
            self._tasks.add(task := asyncio.ensure_future(self.remove(container)))
            task.add_done_callback(self._forget)

    # ---- what a container may have ----

    def _policy(self, spec: ContainerSpec) -> SandboxPolicy:
        ceiling = self.settings.ceiling
        is_online = spec.network == BRIDGE
        return SandboxPolicy(
            allowed_paths=tuple(self._path(mount) for mount in spec.mounts),
            allow_network=ceiling.allow_network and is_online,
            network_rules=ceiling.network_rules if is_online else (),
            allow_process_spawn=True,
            limits=check_ceiling(spec.limits, ceiling.limits or Limits()),
        )

    @property
    def has_network(self) -> bool:
        """Whether containers on the bridge can reach any host."""
        return self.settings.ceiling.allow_network or bool(self.settings.ceiling.network_rules)

    def _path(self, mount: Mount) -> AllowedPath:
        mode = AccessMode.READ_WRITE if mount.is_writable else AccessMode.READ_ONLY
        source = self.volumes.create(mount.source, {}).path if mount.is_volume else self._check_bind(mount)
        return AllowedPath(source, mode, mount.target)

    def _check_bind(self, mount: Mount) -> str:
        """Resolve the links of the source, which must be inside a directory that the operator allowed."""
        real = os.path.realpath(mount.source)
        paths = [(os.path.realpath(path.path), path.mode) for path in self.settings.ceiling.allowed_paths]
        if not any(is_within(real, place) for place, _ in paths):
            reason = "the operator did not allow this directory; see --docker-binds"
            raise DockerError(403, f"invalid mount source {mount.source[:200]!r}: {reason}")
        if mount.is_writable and not may_write(real, paths):
            raise DockerError(403, f"invalid mount source {mount.source[:200]!r}: it may only be bound read-only (:ro)")
        if not os.path.exists(real):
            raise DockerError(400, f"invalid mount source {mount.source[:200]!r}: it does not exist")
        return real

    async def close(self) -> None:
        """End all containers and remove every file."""
        self.image_work.close()
        for container in tuple(self.containers.values()):
            if not container.is_removed:
                await self.remove(container)
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self.events.close()
        await in_thread(self.directory.close)


class RouteGroup:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine


def may_write(real: str, paths: Sequence[tuple[str, AccessMode]]) -> bool:
    """Whether the nearest of the allowed paths is writable, and all of them inside `real` are."""
    around = [(len(place), mode is AccessMode.READ_WRITE) for place, mode in paths if is_within(real, place)]
    inside = [mode for place, mode in paths if place != real and is_within(place, real)]
    return max(around, default=(0, False))[1] and AccessMode.READ_ONLY not in inside


def name_volumes(spec: ContainerSpec) -> tuple[ContainerSpec, list[str]]:
    """Name unnamed volumes; return their names too, because they are removed with their container."""
    own: list[str] = []
    mounts = []
    for mount in spec.mounts:
        if mount.is_volume and not mount.source:
            own.append(secrets.token_hex(32))
            mount = replace(mount, source=own[-1])
        mounts.append(mount)
    return replace(spec, mounts=tuple(mounts)), own


def check_ceiling(asked: Limits, ceiling: Limits) -> Limits:
    """The limits of a container. A requested limit beyond the operator's is refused; a default is lowered."""
    for name in ("memory_mb", "processes", "open_files", "disk_mb", "cpus"):
        wanted, most = getattr(asked, name), getattr(ceiling, name)
        if None not in (wanted, most) and wanted > most and wanted != getattr(DEFAULT_LIMITS, name):
            raise DockerError(400, f"{name} {wanted:g} is more than the operator allows ({most:g})")
    return asked.cap_with(ceiling)

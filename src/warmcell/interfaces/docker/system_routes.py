"""`/_ping`, `/version`, `/info`, `/events`, `/system/df`; volumes and networks."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from warmcell.core.timestamps import rfc3339
from warmcell.images.manifests import own_architecture
from warmcell.interfaces.docker.engine import ANONYMOUS, RouteGroup
from warmcell.interfaces.docker.messages import (
    NEWEST,
    OLDEST,
    DockerError,
    Request,
    Response,
    Route,
    has_labels,
    is_match,
    json_line,
    json_response,
    labels_field,
    object_field,
    text_field,
)
from warmcell.lifetime.threads import in_thread

_API, _OLDEST_API = (f"{major}.{minor}" for major, minor in (NEWEST, OLDEST))
_VERSION = version("warmcell")
_NETWORKS = ("bridge", "none")
#: From this version of the API on, pruning spares volumes with a name unless the filter `all` is set.
_SPARES_NAMED = (1, 42)
_PING_HEADERS = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-cache", "builder-version": "1"}


class SystemRoutes(RouteGroup):
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/_ping", self.ping),
            Route("HEAD", "/_ping", self.ping),
            Route("GET", "/version", self.version),
            Route("GET", "/info", self.info),
            Route("GET", "/events", self.events),
            Route("GET", "/system/df", self.disk_use),
            Route("GET", "/volumes", self.list_volumes),
            Route("POST", "/volumes/create", self.create_volume),
            Route("POST", "/volumes/prune", self.prune_volumes),
            Route("GET", "/volumes/{name}", self.inspect_volume),
            Route("DELETE", "/volumes/{name}", self.remove_volume),
            Route("GET", "/networks", self.list_networks),
            Route("GET", "/networks/{name}", self.inspect_network),
            Route("POST", "/networks/create", self.create_network),
            Route("POST", "/networks/prune", self.prune_networks),
        ]

    async def ping(self, request: Request) -> Response:
        return Response(200, b"OK", dict(_PING_HEADERS))

    async def version(self, request: Request) -> Response:
        details = {
            "ApiVersion": _API,
            "MinAPIVersion": _OLDEST_API,
            "Os": "linux",
            "Arch": own_architecture(),
            "KernelVersion": platform.release(),
            "GitCommit": "",
            "GoVersion": "",
            "BuildTime": "",
        }
        return json_response(
            {
                "Platform": {"Name": "Warmcell"},
                "Components": [{"Name": "Engine", "Version": _VERSION, "Details": details}],
                "Version": _VERSION,
                **details,
            }
        )

    async def info(self, request: Request) -> Response:
        engine = self._engine
        containers = list(engine.containers.values())
        running = sum(container.is_running for container in containers)
        images = {image.digest for image in await in_thread(engine.store.list)}
        return json_response(
            {
                "ID": engine.id,
                "Name": platform.node(),
                "ServerVersion": _VERSION,
                "Containers": len(containers),
                "ContainersRunning": running,
                "ContainersPaused": 0,
                "ContainersStopped": len(containers) - running,
                "Images": len(images),
                "Driver": "overlay2",
                "DockerRootDir": engine.store.path,
                "OSType": "linux",
                "OperatingSystem": "Warmcell",
                "Architecture": platform.machine(),
                "KernelVersion": platform.release(),
                "NCPU": os.cpu_count() or 1,
                "MemTotal": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "MemoryLimit": True,
                "PidsLimit": True,
                "CgroupDriver": "none",
                "CgroupVersion": "2",
                "LoggingDriver": "json-file",
                "SecurityOptions": ["name=rootless", "name=seccomp,profile=warmcell"],
                "Plugins": {"Volume": ["local"], "Network": list(_NETWORKS), "Log": ["json-file"]},
                "Swarm": {"LocalNodeState": "inactive"},
                "DefaultRuntime": "warmcell",
                "Runtimes": {"warmcell": {"path": "warmcell"}},
                "SystemTime": rfc3339(engine.started),
                "RegistryConfig": {"IndexConfigs": {}, "InsecureRegistryCIDRs": [], "Mirrors": []},
                "Labels": [],
                "Warnings": None,
            }
        )

    async def events(self, request: Request) -> Response:
        filters = request.filters("type", "event", "container", "image", "label")
        found = self._engine.events.follow(request.moment("since"), request.moment("until"))

        async def lines() -> AsyncIterator[bytes]:
            async for event in found:
                if _is_wanted(event, filters):
                    yield json_line(event)

        return Response(200, headers={"content-type": "application/json"}, chunks=lines())

    async def disk_use(self, request: Request) -> Response:
        images = await in_thread(self._engine.store.list)
        volumes = [volume.describe() for volume in self._engine.volumes.all.values()]
        layers = sum({image.digest: image.size for image in images}.values())
        return json_response(
            {"LayersSize": layers, "Images": [], "Containers": [], "Volumes": volumes, "BuildCache": []}
        )

    # ---- volumes ----

    async def list_volumes(self, request: Request) -> Response:
        filters = request.filters("name", "label", "dangling", "driver")
        found = [
            volume.describe()
            for volume in self._engine.volumes.all.values()
            if is_match(filters, "name", lambda name, own=volume.name: name in own)  # type: ignore[misc]
            and has_labels(volume.labels, filters.get("label", []))
            and is_match(filters, "dangling", lambda text, own=volume.name: self._is_free(own) == (text != "false"))  # type: ignore[misc]
        ]
        return json_response({"Volumes": found, "Warnings": None})

    def _is_free(self, name: str) -> bool:
        return not self._engine.is_mounted(name)

    async def create_volume(self, request: Request) -> Response:
        document = request.json()
        if text_field(document, "Driver") not in ("", "local"):
            raise DockerError(404, f"volume driver {text_field(document, 'Driver')[:80]!r} not found: use local")
        if object_field(document, "DriverOpts"):
            raise DockerError(400, "DriverOpts are not supported: a volume is a private directory")
        volume = self._engine.volumes.create(text_field(document, "Name"), labels_field(document))
        return json_response(volume.describe(), 201)

    async def inspect_volume(self, request: Request) -> Response:
        return json_response(self._engine.volumes.get(request.names["name"]).describe())

    async def remove_volume(self, request: Request) -> None:
        await self._engine.complete(self._remove(request.names["name"]))

    async def _remove(self, name: str) -> None:
        """The check and the removal of the name are one step: another request may be about to mount the volume."""
        if not self._is_free(name):
            raise DockerError(409, f"remove {name}: volume is in use")
        await self._engine.volumes.remove(name)

    async def prune_volumes(self, request: Request) -> Response:
        filters = request.filters("label", "all")
        wants_all = any(value.lower() in ("1", "true") for value in filters.get("all", []))
        labels = filters.get("label", [])
        if request.version >= _SPARES_NAMED and not wants_all:
            labels = [*labels, ANONYMOUS]
        volumes = self._engine.volumes
        removed: list[str] = []

        async def remove(name: str) -> None:
            """Others may have mounted or removed it while those before it were removed."""
            found = volumes.all.get(name)
            if found and self._is_free(name) and has_labels(found.labels, labels):
                await volumes.remove(name)
                removed.append(name)

        for name in tuple(volumes.all):
            await self._engine.complete(remove(name))
        return json_response({"VolumesDeleted": removed or None, "SpaceReclaimed": 0})

    # ---- networks ----

    async def list_networks(self, request: Request) -> Response:
        filters = request.filters("name", "id", "driver", "type", "scope", "label", "dangling")
        found = [name for name in _NETWORKS if is_match(filters, "name", lambda text, own=name: text in own)]  # type: ignore[misc]
        return json_response([self._network(name) for name in found])

    async def inspect_network(self, request: Request) -> Response:
        name = request.names["name"]
        if name not in _NETWORKS:
            raise DockerError(404, f"network {name[:80]} not found")
        return json_response(self._network(name))

    async def create_network(self, request: Request) -> Response:
        raise DockerError(403, "networks cannot be created: a container reaches only what --docker-network allows")

    async def prune_networks(self, request: Request) -> Response:
        return json_response({"NetworksDeleted": None})

    def _network(self, name: str) -> dict[str, Any]:
        is_internal = name == "none" or not self._engine.has_network
        return {
            "Name": name,
            "Id": name,
            "Created": rfc3339(self._engine.started),
            "Scope": "local",
            "Driver": "bridge" if name == "bridge" else "null",
            "EnableIPv6": False,
            "IPAM": {"Driver": "default", "Options": None, "Config": []},
            "Internal": is_internal,
            "Attachable": False,
            "Ingress": False,
            "Containers": {},
            "Options": {},
            "Labels": {},
        }


def _is_wanted(event: dict[str, Any], filters: dict[str, list[str]]) -> bool:
    attributes = event["Actor"]["Attributes"]
    names = (event["id"], attributes.get("name", ""))
    return (
        is_match(filters, "type", lambda kind: kind == event["Type"])
        and is_match(filters, "event", lambda action: event["Action"].partition(":")[0] == action)
        and is_match(filters, "container", lambda text: event["Type"] == "container" and _is_named(text, names))
        and is_match(filters, "image", lambda text: text in (attributes.get("image"), *names))
        and has_labels(attributes, filters.get("label", []))
    )


def _is_named(text: str, names: tuple[str, str]) -> bool:
    return text == names[1] or (len(text) >= 4 and names[0].startswith(text))

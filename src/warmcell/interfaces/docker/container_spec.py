"""Parses a request for a container, and refuses unsupported fields by name. Pure module."""

from __future__ import annotations

import posixpath
import re
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warmcell.core.types import MIB, Limits, check_env
from warmcell.images import Image
from warmcell.images.model import config_document
from warmcell.interfaces.docker.messages import (
    DockerError,
    check_size,
    labels_field,
    memory_of,
    object_field,
    objects_field,
    refuse_unknown,
    text_field,
    texts_field,
    whole_field,
)

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}")
_PORT = re.compile(r"(\d{1,5})(?:/(tcp|udp|sctp))?")
_SIZE = re.compile(r"(\d{1,12})([kmgt]?)b?")
#: Splitting a command line copies each of its words once for each of their characters.
_MAX_COMMAND_LINE = 64 << 10
#: The most that is counted of an image's configuration: all that the descriptions of all containers may take.
_MAX_COUNTED = 64 << 20
_UNITS = {"": 1, "k": 1 << 10, "m": MIB, "g": 1 << 30, "t": 1 << 40}
NO_NETWORK, BRIDGE = "none", "bridge"
#: The limits of containers that request none. Docker has none by default, and images and their test suites are large.
DEFAULT_LIMITS = Limits(memory_mb=4096, processes=1024, open_files=4096, disk_mb=8192)
_RATES = "BlkioDeviceReadBps BlkioDeviceWriteBps BlkioDeviceReadIOps BlkioDeviceWriteIOps BlkioWeightDevice".split()

#: Fields of HostConfig that would open the cage or need a privilege, and why they are refused.
_REFUSED = {
    "Privileged": "a container never gets privileges on the host",
    "CapAdd": "a container has no capabilities",
    "Devices": "a container has no devices of the host",
    "DeviceRequests": "devices are not passed to containers",
    "DeviceCgroupRules": "a container has no devices of the host",
    "VolumesFrom": "name the volumes in Binds or Mounts",
    "VolumeDriver": "volumes are private directories",
    "Links": "containers do not reach each other",
    "ExtraHosts": "/etc/hosts is the cage's",
    **dict.fromkeys(("Dns", "DnsOptions", "DnsSearch"), "names are resolved by the egress proxy"),
    "Sysctls": "kernel parameters cannot be changed",
    "Tmpfs": "the whole root is private and writable; leave it out",
    "ReadonlyRootfs": "the root is always a private writable layer",
    "GroupAdd": "a container has one user and one group",
    **dict.fromkeys(("CgroupParent", "Cgroup"), "the cage has a control group of its own"),
    **dict.fromkeys(("CpusetCpus", "CpusetMems"), "use NanoCpus"),
    **dict.fromkeys(_RATES, "input and output are not limited by rate"),
    "OomKillDisable": "a container that exceeds its memory always ends",
    "Annotations": "there is no other runtime that reads them",
}
#: Fields without effect that no program relies on: accepted, with a warning.
_WARNED = {
    "CpuShares": "containers share the processors equally",
    "MemoryReservation": "only Memory limits a container",
    "MemorySwap": "swap counts as memory",
    "KernelMemory": "only Memory limits a container",
    "KernelMemoryTCP": "only Memory limits a container",
    "BlkioWeight": "containers share the disk equally",
    "OomScoreAdj": "the cage sets it",
    "ShmSize": "/dev/shm counts as the container's disk",
}
#: Values that mean what a container has anyway.
_ACCEPTED = {
    "IpcMode": ("", "none", "private", "shareable"),
    "PidMode": ("",),
    "UTSMode": ("",),
    "UsernsMode": ("",),
    "CgroupnsMode": ("", "private"),
    "Isolation": ("", "default"),
    "Runtime": ("", "runc"),
    "MemorySwappiness": (None, -1, 0),
}
#: Fields that are read below, or that hold for every container: it has an init, and no capabilities.
_TAKEN = (
    *("AutoRemove", "Binds", "CapDrop", "ConsoleSize", "ContainerIDFile", "CpuPeriod", "CpuQuota", "Init", "LogConfig"),
    *("Memory", "Mounts", "NanoCpus", "NetworkMode", "PidsLimit", "PortBindings", "PublishAllPorts", "RestartPolicy"),
    *("SecurityOpt", "StorageOpt", "Ulimits"),
)
_KNOWN_HOST = frozenset((*_REFUSED, *_WARNED, *_ACCEPTED, *_TAKEN))
#: Fields beside HostConfig; those that have no effect here describe the image or the client.
_KNOWN = frozenset(
    "ArgsEscaped AttachStderr AttachStdin AttachStdout Cmd Domainname Entrypoint Env ExposedPorts Healthcheck "
    "HostConfig Hostname Image Labels MacAddress NetworkDisabled NetworkingConfig OnBuild OpenStdin Shell StdinOnce "
    "StopSignal StopTimeout Tty User Volumes WorkingDir".split()
)
#: Modes of a bind. Labels and consistency mean nothing here; mounts of a cage are always private.
_BIND_MODES = frozenset("ro rw z Z cached consistent delegated nocopy private rprivate".split())
_MOUNT_FIELDS = frozenset("BindOptions Consistency ReadOnly Source Target Type VolumeOptions".split())
_HARMLESS_SECURITY = ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")


@dataclass(frozen=True, slots=True)
class Mount:
    """`source` is a host directory, or the name of a volume; "" for a volume of the container's own."""

    source: str
    target: str
    is_volume: bool
    is_writable: bool = True


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The parsed request for a container. `document` and `host_document` are what the client sent, for `inspect`.

    `size` is the memory that they and the image's configuration take.
    """

    image_name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str
    user: str
    labels: Mapping[str, str]
    has_tty: bool
    has_stdin: bool
    closes_stdin: bool
    stop_signal: int
    stop_timeout: int
    is_auto_removed: bool
    network: str
    limits: Limits
    mounts: tuple[Mount, ...] = ()
    #: By port in the container: the host's port, 0 for any.
    ports: Mapping[int, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    host_document: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        allowed = "only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed"
        raise DockerError(400, f"Invalid container name ({name[:80]}), {allowed}")
    return name


def read_spec(document: Mapping[str, Any], image: Image, *, ignores_capabilities: bool = False) -> ContainerSpec:
    """The request of a client, with the image's configuration filled in. Refusals name the field."""
    size = check_size(document, "the container") + memory_of(config_document(image.config), _MAX_COUNTED)
    host = object_field(document, "HostConfig")
    warnings = _check_host_config(host, ignores_capabilities)
    warnings += _check_document(document)
    return ContainerSpec(
        image_name=text_field(document, "Image"),
        argv=_command(document, image),
        env=read_env(document),
        working_dir=_working_dir(document, image),
        user=text_field(document, "User") or image.config.user or "root",
        labels={**image.config.labels, **labels_field(document)},
        has_tty=bool(document.get("Tty")),
        has_stdin=bool(document.get("OpenStdin")),
        closes_stdin=bool(document.get("StdinOnce")),
        stop_signal=parse_signal(text_field(document, "StopSignal") or image.config.stop_signal or "SIGTERM"),
        stop_timeout=whole_field(document, "StopTimeout", 10),
        is_auto_removed=bool(host.get("AutoRemove")),
        network=NO_NETWORK if document.get("NetworkDisabled") else _network(host),
        limits=_limits(host),
        mounts=_mounts(document, host),
        ports=_ports(document, host, image),
        warnings=tuple(warnings),
        document=document,
        host_document=host,
        size=size,
    )


# ---- checks ----


def _check_host_config(host: Mapping[str, Any], ignores_capabilities: bool) -> list[str]:
    warnings: list[str] = []
    for name, reason in _REFUSED.items():
        if not host.get(name):
            continue
        if name != "CapAdd" or not ignores_capabilities:
            raise DockerError(400, f"HostConfig.{name} is not supported: {reason}")
        warnings.append(f"CapAdd {', '.join(texts_field(host, name))} was left out: {reason}")
    for name, values in _ACCEPTED.items():
        if host.get(name, values[0]) not in values:
            raise DockerError(400, f"HostConfig.{name}={str(host[name])[:80]!r} is not supported")
    refuse_unknown(host, _KNOWN_HOST, "HostConfig")
    for option in texts_field(host, "SecurityOpt"):
        if option not in _HARMLESS_SECURITY:
            raise DockerError(400, f"HostConfig.SecurityOpt {option[:80]!r} is not supported: the cage is fixed")
    restart = text_field(object_field(host, "RestartPolicy"), "Name")
    if restart not in ("", "no"):
        raise DockerError(400, f"HostConfig.RestartPolicy {restart[:40]!r} is not supported: start it again yourself")
    if (log := text_field(object_field(host, "LogConfig"), "Type")) not in ("", "json-file", "local"):
        raise DockerError(400, f"HostConfig.LogConfig {log[:40]!r} is not supported: output is kept in memory")
    return warnings + [f"{name} has no effect: {reason}" for name, reason in _WARNED.items() if host.get(name)]


def _check_document(document: Mapping[str, Any]) -> list[str]:
    test = texts_field(object_field(document, "Healthcheck"), "Test")
    if test and test != ("NONE",):
        raise DockerError(400, "Healthcheck is not supported: run the check with exec")
    if document.get("MacAddress"):
        raise DockerError(400, "MacAddress is not supported: a container has no network device")
    refuse_unknown(document, _KNOWN, "the container")
    endpoints = object_field(object_field(document, "NetworkingConfig"), "EndpointsConfig")
    for name in endpoints.keys() - {"default", BRIDGE, NO_NETWORK}:
        raise DockerError(404, f"network {name[:80]} not found: use 'bridge' or 'none'")
    names = [name for name in ("Hostname", "Domainname") if document.get(name)]
    return [f"{name} has no effect: the cage has a name of its own" for name in names]


def _network(host: Mapping[str, Any]) -> str:
    mode = text_field(host, "NetworkMode")
    if mode in ("", "default", BRIDGE):
        return BRIDGE
    if mode == NO_NETWORK:
        return NO_NETWORK
    if mode == "host":
        raise DockerError(400, "HostConfig.NetworkMode 'host' is not supported: no container reaches the host")
    raise DockerError(404, f"network {mode[:80]} not found: use 'bridge' or 'none'")


# ---- fields ----


def _command(document: Mapping[str, Any], image: Image) -> tuple[str, ...]:
    """The command line. An entry point in the request drops the image's CMD, as in Docker."""
    config = image.config
    if document.get("Entrypoint") is not None:
        entrypoint = tuple(word for word in _words(document, "Entrypoint") if word)
        argv = (*entrypoint, *_words(document, "Cmd"))
    else:
        argv = (*config.entrypoint, *(_words(document, "Cmd") or config.cmd))
    if not argv:
        raise DockerError(400, "no command specified")
    return argv


def _words(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if not isinstance(document.get(name), str):
        return texts_field(document, name)
    text = text_field(document, name)
    if len(text) > _MAX_COMMAND_LINE:
        raise DockerError(400, f"{name}: as text it has at most {_MAX_COMMAND_LINE} characters: send a list of words")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise DockerError(400, f"{name}: {str(error).lower()}") from None


def read_env(document: Mapping[str, Any]) -> dict[str, str]:
    """The variables. A name without a value is not set; in Docker it removes the image's."""
    pairs = [text.partition("=") for text in texts_field(document, "Env")]
    found = check_env({name: value for name, equals, value in pairs if name and equals}, "Env")
    return {**({"TERM": "xterm"} if document.get("Tty") else {}), **found}


def _working_dir(document: Mapping[str, Any], image: Image) -> str:
    path = text_field(document, "WorkingDir") or image.config.workdir
    if not path.startswith("/"):
        raise DockerError(400, f"the working directory {path[:80]!r} is invalid, it needs to be an absolute path")
    return posixpath.normpath(path)


def _limits(host: Mapping[str, Any]) -> Limits:
    memory, pids = whole_field(host, "Memory"), whole_field(host, "PidsLimit")
    if 0 < memory < 6 * MIB:
        raise DockerError(400, "Minimum memory limit allowed is 6MB")
    cpus = whole_field(host, "NanoCpus") / 1e9
    if not cpus and (quota := whole_field(host, "CpuQuota")) > 0:
        cpus = quota / (whole_field(host, "CpuPeriod") or 100_000)
    limits = objects_field(host, "Ulimits")
    others = [limit for limit in limits if text_field(limit, "Name") != "nofile"]
    if others:
        name = text_field(others[0], "Name")[:40]
        raise DockerError(400, f"HostConfig.Ulimits {name!r} is not supported: only nofile is")
    refuse_unknown(object_field(host, "StorageOpt"), ("size",), "HostConfig.StorageOpt")
    size = text_field(object_field(host, "StorageOpt"), "size")
    return Limits(
        memory_mb=memory // MIB or DEFAULT_LIMITS.memory_mb,
        processes=pids if pids > 0 else DEFAULT_LIMITS.processes,
        open_files=whole_field(limits[0] if limits else {}, "Soft") or DEFAULT_LIMITS.open_files,
        disk_mb=_size(size) // MIB or 1 if size else DEFAULT_LIMITS.disk_mb,
        cpus=cpus or None,
    )


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.lower())
    if not found:
        raise DockerError(400, f"HostConfig.StorageOpt size {text[:40]!r} is not a size")
    return int(found[1]) * _UNITS[found[2]]


def _mounts(document: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[Mount, ...]:
    found = [_bind(text) for text in texts_field(host, "Binds")]
    found += [_mount(item) for item in objects_field(host, "Mounts")]
    taken = {mount.target for mount in found}
    if len(taken) != len(found):
        raise DockerError(400, "Duplicate mount point")
    own = [posixpath.normpath(target) for target in object_field(document, "Volumes")]
    return (*found, *(Mount("", target, True) for target in own if target not in taken))


def _bind(text: str) -> Mount:
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise DockerError(400, f"invalid volume specification: {text[:200]!r}")
    modes = parts[2].split(",") if len(parts) == 3 and parts[2] else []
    if unknown := set(modes) - _BIND_MODES:
        raise DockerError(400, f"invalid mode of {text[:200]!r}: {min(unknown)[:40]!r} is not supported")
    return _make_mount(parts[0], parts[1], not parts[0].startswith("/"), "ro" not in modes)


def _mount(item: Mapping[str, Any]) -> Mount:
    refuse_unknown(item, _MOUNT_FIELDS, "HostConfig.Mounts")
    bind = object_field(item, "BindOptions")
    refuse_unknown(bind, ("Propagation", "CreateMountpoint", "NonRecursive"), "HostConfig.Mounts.BindOptions")
    if text_field(bind, "Propagation") not in ("", "private", "rprivate"):
        raise DockerError(400, "HostConfig.Mounts.BindOptions.Propagation is not supported: mounts are private")
    # A path within a volume, or a driver: a volume is a private directory, and all of it is mounted.
    refuse_unknown(object_field(item, "VolumeOptions"), ("NoCopy", "Labels"), "HostConfig.Mounts.VolumeOptions")
    kind = text_field(item, "Type")
    if kind not in ("bind", "volume"):
        raise DockerError(400, f"HostConfig.Mounts: type {kind[:40]!r} is not supported: use bind or volume")
    source, target = text_field(item, "Source"), text_field(item, "Target")
    return _make_mount(source, target, kind == "volume", not item.get("ReadOnly"))


def _make_mount(source: str, target: str, is_volume: bool, is_writable: bool) -> Mount:
    if not target.startswith("/") or ".." in target.split("/") or posixpath.normpath(target) == "/":
        raise DockerError(400, f"invalid mount path: {target[:200]!r} must be absolute, and not the root")
    if ".." in source.split("/"):
        raise DockerError(400, f"invalid mount source: {source[:200]!r} contains '..'")
    source = source if is_volume else posixpath.normpath(source)
    return Mount(source, posixpath.normpath(target), is_volume, is_writable)


def _ports(document: Mapping[str, Any], host: Mapping[str, Any], image: Image) -> dict[int, int]:
    ports = {}
    for name, bindings in object_field(host, "PortBindings").items():
        inner = parse_port(name)
        items = objects_field({name: bindings}, name) or [{}]
        if len(items) != 1:
            raise DockerError(400, f"HostConfig.PortBindings {name!r}: one binding for each port is supported")
        if text_field(items[0], "HostIp") not in ("", "0.0.0.0", "127.0.0.1", "localhost", "::", "::1"):
            raise DockerError(400, f"HostConfig.PortBindings {name!r}: ports are on the loopback address only")
        text = text_field(items[0], "HostPort")
        ports[inner] = parse_port(text) if text not in ("", "0") else 0
    if host.get("PublishAllPorts"):
        for name in (*image.config.exposed_ports, *object_field(document, "ExposedPorts")):
            ports.setdefault(parse_port(name), 0)
    return ports


def parse_port(text: str) -> int:
    found = _PORT.fullmatch(text)
    if not found or not 0 < int(found[1]) < 65536:
        raise DockerError(400, f"invalid port specification: {text[:40]!r}")
    if found[2] not in (None, "tcp"):
        raise DockerError(400, f"port {text}: only tcp is supported")
    return int(found[1])


def parse_signal(text: str) -> int:
    """A number, or a name with or without SIG."""
    if text.isascii() and text.isdigit() and len(text) < 4 and 0 < int(text) <= 64:
        return int(text)
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    found = signal.Signals.__members__.get(name)
    if found is None:
        raise DockerError(400, f"invalid signal: {text[:40]}")
    return int(found)

"""Containers as `inspect`, `list`, `stats` and `top` show them. No I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from warmcell.core.timestamps import rfc3339
from warmcell.core.types import MIB
from warmcell.images.model import config_document
from warmcell.interfaces.docker.container import Container, ExecProcess

#: Where published ports are.
_PORTS_ADDRESS = "127.0.0.1"
_NEVER = "0001-01-01T00:00:00Z"
TOP_TITLES = ("UID", "PID", "PPID", "C", "STIME", "TTY", "TIME", "CMD")


def _timestamp(value: float) -> str:
    return rfc3339(value) if value else _NEVER


def inspect_container(container: Container) -> dict[str, Any]:
    spec = container.spec
    return {
        "Id": container.id,
        "Created": rfc3339(container.created),
        "Path": spec.argv[0],
        "Args": list(spec.argv[1:]),
        "State": _state(container),
        "Image": container.image.digest,
        "ResolvConfPath": "",
        "HostnamePath": "",
        "HostsPath": "",
        "LogPath": "",
        "Name": f"/{container.name}",
        "RestartCount": 0,
        "Driver": "overlay2",
        "Platform": "linux",
        "MountLabel": "",
        "ProcessLabel": "",
        "AppArmorProfile": "",
        "ExecIDs": [found.id for found in container.execs.values() if found.is_running] or None,
        "HostConfig": _host_config(container),
        "GraphDriver": {"Name": "overlay2", "Data": None},
        "Mounts": _mounts(container),
        "Config": _config(container),
        "NetworkSettings": _network_settings(container),
    }


def _state(container: Container) -> dict[str, Any]:
    cage = container.cage.current if container.is_running else None
    return {
        "Status": "removing" if container.is_removed else container.state,
        "Running": container.is_running,
        "Paused": False,
        "Restarting": False,
        "OOMKilled": container.is_oom_killed,
        "Dead": False,
        "Pid": 0 if cage is None else cage.pid,
        "ExitCode": container.exit_code,
        "Error": container.error,
        "StartedAt": _timestamp(container.started),
        "FinishedAt": _timestamp(container.finished),
    }


def _host_config(container: Container) -> dict[str, Any]:
    """What the client sent, with the limits that are enforced."""
    spec, limits = container.spec, container.spec.limits
    return {
        "Binds": None,
        "PortBindings": {},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "LogConfig": {"Type": "json-file", "Config": {}},
        **spec.host_document,
        "NetworkMode": spec.network,
        "AutoRemove": spec.is_auto_removed,
        "Privileged": False,
        "CapAdd": None,
        "Memory": (limits.memory_mb or 0) * MIB,
        "PidsLimit": limits.processes,
        "NanoCpus": int((limits.cpus or 0) * 1e9),
    }


def _config(container: Container) -> dict[str, Any]:
    """The image's configuration, overridden by the client's."""
    spec = container.spec
    base = config_document(container.image.config)
    asked = {name: value for name, value in spec.document.items() if name not in ("HostConfig", "NetworkingConfig")}
    env = [f"{name}={value}" for name, value in {**container.image.config.env, **spec.env}.items()]
    fixed = {
        "Image": spec.image_name,
        "Env": env,
        "Labels": dict(spec.labels),
        "User": spec.user,
        "WorkingDir": spec.working_dir,
        "Tty": spec.has_tty,
        "OpenStdin": spec.has_stdin,
        "StdinOnce": spec.closes_stdin,
        "Hostname": container.id[:12],
    }
    defaults = {"Cmd": None, "Entrypoint": None, "AttachStdout": False, "AttachStderr": False, "AttachStdin": False}
    return {**defaults, **base, **{name: value for name, value in asked.items() if value is not None}, **fixed}


def _mounts(container: Container) -> list[dict[str, Any]]:
    return [
        {
            "Type": "volume" if mount.is_volume else "bind",
            "Name": mount.source if mount.is_volume else "",
            "Source": mount.source,
            "Destination": mount.target,
            "Mode": "" if mount.is_writable else "ro",
            "RW": mount.is_writable,
            "Propagation": "",
        }
        for mount in container.spec.mounts
    ]


def _network_settings(container: Container) -> dict[str, Any]:
    # Clients that run in a container themselves look for published ports at the gateway.
    place = {"IPAddress": "", "Gateway": _PORTS_ADDRESS if container.ports else "", "MacAddress": ""}
    network = {"NetworkID": container.spec.network, "Aliases": None, **place}
    ports = {
        f"{port}/tcp": [{"HostIp": _PORTS_ADDRESS, "HostPort": str(listener.port)}]
        for port, listener in container.ports.items()
    }
    return {"Ports": ports, **place, "Networks": {container.spec.network: network}}


def list_entry(container: Container) -> dict[str, Any]:
    spec = container.spec
    ports = [
        {"IP": _PORTS_ADDRESS, "PrivatePort": port, "PublicPort": listener.port, "Type": "tcp"}
        for port, listener in container.ports.items()
    ]
    return {
        "Id": container.id,
        "Names": [f"/{container.name}"],
        "Image": spec.image_name,
        "ImageID": container.image.digest,
        "Command": " ".join(spec.argv),
        "Created": int(container.created),
        "Ports": ports,
        "Labels": dict(spec.labels),
        "State": container.state,
        "Status": _status(container),
        "HostConfig": {"NetworkMode": spec.network},
        "NetworkSettings": {"Networks": _network_settings(container)["Networks"]},
        "Mounts": _mounts(container),
    }


def _status(container: Container) -> str:
    if container.state == "created":
        return "Created"
    now = time.time()
    if container.is_running:
        return f"Up {_duration(now - container.started)}"
    return f"Exited ({container.exit_code}) {_duration(now - container.finished)} ago"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} seconds" if seconds >= 1 else "Less than a second"


def inspect_exec(container: Container, process: ExecProcess) -> dict[str, Any]:
    """The pid is the one inside of the container, so that `kill` there finds it."""
    spec = process.spec
    config = {"tty": spec.has_tty, "entrypoint": spec.argv[0], "arguments": list(spec.argv[1:]), "privileged": False}
    return {
        "ID": process.id,
        "Running": process.is_running,
        "ExitCode": process.exit_code,
        "ProcessConfig": {**config, "user": container.spec.user},
        "OpenStdin": spec.has_stdin,
        "OpenStderr": True,
        "OpenStdout": True,
        "CanRemove": process.has_ended,
        "ContainerID": container.id,
        "DetachKeys": "",
        "Pid": 0 if process.process is None else process.process.info.pid,
    }


def stats_document(container: Container, usage: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """`usage` is the cage's answer, with the time when it was read. A guest can forge it, which misleads only its own
    client. `before` is an earlier one.
    """
    return {
        "read": rfc3339(usage["read"]),
        "preread": rfc3339(before["read"]) if before else _NEVER,
        "name": f"/{container.name}",
        "id": container.id,
        "num_procs": 0,
        "pids_stats": {"current": int(usage.get("count", 0)), "limit": container.spec.limits.processes},
        "cpu_stats": _cpu(usage),
        "precpu_stats": _cpu(before or {}),
        "memory_stats": {
            "usage": int(usage.get("memory", 0)),
            "limit": (container.spec.limits.memory_mb or 0) * MIB,
            "stats": {},
        },
        "blkio_stats": {},
        "networks": {},
        "storage_stats": {},
    }


def _cpu(usage: Mapping[str, Any]) -> dict[str, Any]:
    seconds, system = usage.get("seconds", 0), usage.get("system", 0)
    return {
        "cpu_usage": {"total_usage": int(seconds * 1e9), "usage_in_usermode": 0, "usage_in_kernelmode": 0},
        "system_cpu_usage": int(system * 1e9),
        "online_cpus": usage.get("cpus", 1),
        "throttling_data": {"periods": 0, "throttled_periods": 0, "throttled_time": 0},
    }

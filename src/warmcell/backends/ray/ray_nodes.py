"""RayNodes: the cluster as Ray shows it, and the actors that Ray starts on its nodes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from warmcell.backends.ray.direct_connection import Connection, DirectListener, connect
from warmcell.backends.ray.node_service import NodeService
from warmcell.backends.ray.placement import RESOURCE, NodeFacts, NodeInfo
from warmcell.core.errors import BackendUnavailable, InvalidRequest, SandboxError
from warmcell.lifetime.ownership import Lock

#: Results are small: a cluster that we start ourselves needs little shared memory.
_STORE_BYTES = 128 << 20
_lock = Lock()
#: Backends that use the connection to Ray that we made; the last one ends it.
_users = 0


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise BackendUnavailable(
            "the ray backend needs the package 'ray', which is not installed", hint="pip install 'warmcell[ray]'"
        ) from None
    return ray


class RayNodes:
    """`address` as in `ray.init`; None: the connection that this program has, the cluster of this host or
    `RAY_ADDRESS`, or else a new one on this host. Blocking, except for the transports.
    """

    def __init__(self, address: str | None) -> None:
        if address is not None and not isinstance(address, str):
            raise InvalidRequest(f"must be text, not {type(address).__name__}", field="address")
        self._address = address
        self._is_ours = False
        self._ray: Any = None

    def join(self) -> None:
        global _users
        self._ray = import_ray()
        with _lock:
            if self._ray.is_initialized() and not _users:
                return  # the caller's own connection
            if not self._ray.is_initialized():
                self._connect()
            _users += 1
            self._is_ours = True

    def _connect(self) -> None:
        quiet = {"log_to_driver": False, "logging_level": "WARNING"}
        address = self._address or os.environ.get("RAY_ADDRESS")
        try:
            if address is not None:
                self._ray.init(address=address, **quiet)
                return
            try:
                self._ray.init(address="auto", **quiet)
            except ConnectionError:
                own = {"object_store_memory": _STORE_BYTES, "_system_config": {"worker_niceness": 0}}
                self._ray.init(include_dashboard=False, **own, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BackendUnavailable(
                f"cannot join the Ray cluster {address or 'on this host'}: {reason}", hint=_join_hint(address)
            ) from error

    def leave(self) -> None:
        """Ends the connection if it is ours and no other backend uses it."""
        global _users
        with _lock:
            if not self._is_ours:
                return
            self._is_ours = False
            _users -= 1
            if not _users:
                self._ray.shutdown()

    def list(self) -> list[NodeInfo]:
        """The nodes that are alive."""
        if not self._ray.is_initialized():
            raise ConnectionError("this program has disconnected from Ray")
        draining = self._draining()
        return [_info(node, node["NodeID"] in draining) for node in self._ray.nodes() if node["Alive"]]

    def _draining(self) -> set[str]:
        from ray._private.state import state

        # Not part of Ray's stable interface: without it, nodes that drain are used until they are gone.
        with suppress(AttributeError):
            return set(state.get_draining_nodes())
        return set()

    def start(self, node_id: str, make_backend: Callable[[], Any]) -> RayTransport:
        """An actor on this node. It ends with this program."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from warmcell.backends.ray.ray_nodes import NodeActor

        placed = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": placed}
        actor = self._ray.remote(NodeActor).options(**options).remote(pickle.dumps(make_backend))
        return RayTransport(self._ray, actor)


def _join_hint(address: str | None) -> str:
    """Ray's error does not say that the token is missing: it is not sent to an address unless the mode is set."""
    status = "`ray status` shows whether one runs; `ray start --head` starts one"
    if address in (None, "auto") or os.environ.get("RAY_AUTH_MODE"):
        return status
    return f"{status}; if it was started with a token, set RAY_AUTH_MODE=token and have its ~/.ray/auth_token"


def _info(node: dict[str, Any], is_draining: bool) -> NodeInfo:
    resources: dict[str, float] = node.get("Resources", {})
    return NodeInfo(
        id=node["NodeID"],
        address=node["NodeManagerAddress"],
        cores=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        is_draining=is_draining,
        has_resource=RESOURCE in resources,
    )


class RayTransport:
    """Calls of one actor. Ray's errors become ours or `ConnectionError`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._direct: Connection | None = None

    async def start(self) -> NodeFacts:
        answer = await self._call(self._actor.start)
        facts = pickle.loads(answer)  # noqa: S301  # of our own actor
        if isinstance(facts, SandboxError):
            raise facts
        assert isinstance(facts, NodeFacts)
        self._direct = await self._connect()
        return facts

    async def _connect(self) -> Connection | None:
        """A direct connection: to a node of this host, else over the network. None: the node cannot be reached so."""
        for is_local in (True,) if _has_tls() else (True, False):
            with suppress(OSError):
                answer = await self._call(self._actor.listen, is_local)
                return await connect(pickle.loads(answer))  # noqa: S301  # of our own actor
        return None

    async def submit(self, payload: bytes) -> None:
        if self._direct is not None:
            await self._direct.send(payload)
        else:
            await self._call(self._actor.submit, payload)

    async def take(self) -> bytes:
        if self._direct is not None:
            return await self._direct.receive()
        taken: bytes = await self._call(self._actor.take)
        return taken

    async def check(self) -> None:
        """Returns if the service has outlived what it has sent so far.

        By a call of Ray: an actor that has begun to end does not carry out any more.
        """
        await self._call(self._actor.check)

    async def close(self) -> None:
        await self._call(self._actor.close)

    def kill(self) -> None:
        """Ends the service and everything it runs, at once. May be called twice."""
        if self._direct is not None:
            self._direct.close()
        if self._ray.is_initialized():
            with suppress(Exception):  # Ray has no common class for these; the actor is gone, or goes with Ray
                self._ray.kill(self._actor, no_restart=True)

    async def _call(self, method: Any, *values: Any) -> Any:
        if not self._ray.is_initialized():  # the call would start a cluster of its own
            raise ConnectionError("this program has disconnected from Ray")
        try:
            return await method.remote(*values)
        except Exception as error:  # Ray raises RayError, and plain ones for actors that it does not know
            raise ConnectionError(_reason(error)) from error


def _has_tls() -> bool:
    """Whether Ray encrypts what it sends: a connection of ours would not."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _reason(error: Exception) -> str:
    """The line of Ray's long message that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "died" in line or "Error" in line]
    return (telling or lines or [type(error).__name__])[-1][:300]


class NodeActor:
    """An asynchronous actor around a `NodeService`: its methods overlap, on one event loop."""

    def __init__(self, make_backend: bytes) -> None:
        self._make_backend = make_backend
        self._service: NodeService | None = None
        self._listener: DirectListener | None = None

    async def start(self) -> bytes:
        """The node's facts, or the error that keeps it from running anything."""
        try:
            self._service = NodeService(pickle.loads(self._make_backend))  # noqa: S301  # of our own program
            return pickle.dumps(await self._service.start())
        except SandboxError as error:
            return pickle.dumps(error.with_traceback(None))

    async def listen(self, is_local: bool) -> bytes:
        """Offers a direct connection to programs of this host, or to those of other hosts."""
        import ray

        assert self._service is not None
        self._listener = self._listener or DirectListener(self._service.serve)
        return pickle.dumps(await self._listener.listen(None if is_local else ray.util.get_node_ip_address()))

    async def submit(self, payload: bytes) -> None:
        assert self._service is not None
        self._service.submit(payload)

    async def take(self) -> bytes:
        assert self._service is not None
        return await self._service.take()

    async def check(self) -> None:
        """Returns if this process is not about to end."""

    async def close(self) -> None:
        """The connection stays until Ray ends the process: its end would mean that the node was lost."""
        if self._listener is not None:
            self._listener.stop()
        if self._service is not None:
            await self._service.close()

"""Supply: things made ahead of need (warm cells, WASM workers, spare sandboxes), each in one state.

making -> ready -> leased -> gone        a reusable thing goes from leased back to ready
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from weakref import WeakSet

from warmcell.core.errors import SandboxError
from warmcell.core.light import suppress
from warmcell.core.records import dataclass, field
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Generic, TypeVar

    K = TypeVar("K", bound=Hashable)
    T = TypeVar("T", bound=Hashable)
else:  # `typing` loads slowly
    K = T = None

    class Generic:
        __slots__ = ()
        __class_getitem__ = classmethod(lambda kind, _: kind)


IDLE_SECONDS = 30.0
MAKING, READY, LEASED, GONE = "making", "ready", "leased", "gone"
_ALL = 1 << 30
#: Warm cells may use 1/n of the descriptors, and there are at most so many.
_SHARE_OF_DESCRIPTORS, _MOST_WARM = 4, 256


class Item(Generic[K, T]):
    """One thing, its key and its state. `since`: when it became ready."""

    __slots__ = ("key", "since", "state", "thing")
    thing: T
    since: float

    def __init__(self, key: K) -> None:
        self.key, self.state = key, MAKING

    def take_out(self) -> T:
        self.state = GONE
        return self.thing


@dataclass(slots=True)
class Demand(Generic[K, T]):
    """The things of one key: how many to keep, which are ready (oldest first), and which are being made."""

    target: int
    last_used: float = 0.0
    ready: deque[Item[K, T]] = field(default_factory=deque)
    making: set[Item[K, T]] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.ready) + len(self.making)


class Supply(Generic[K, T]):
    """Thread-safe. The lock is never held while something starts or stops.

    Instead, methods return what the caller must make or end. The maker, a thread, does both; `pause`, `make_ahead` and
    `end` are its steps. `largest` bounds one key, `total` all keys; an idle key keeps `smallest`. If the total is too
    small for all, the keys get one each in turn, the most recently used first.
    """

    #: The maker checks after every change, and at least so often.
    check_seconds = IDLE_SECONDS

    def __init__(self, smallest: int, largest: int, total: int) -> None:
        self.smallest, self.largest, self.total = smallest, largest, total
        #: If set, nothing becomes ready any more.
        self.is_closed = False
        self.last_used = 0.0
        self.abandon()

    def abandon(self) -> None:
        """In a forked copy: the original keeps everything."""
        self.lock = threading.RLock()  # used directly: the condition's own methods cost a call each
        self.changed = threading.Condition(self.lock)
        #: Most recently used last.
        self.demands: dict[K, Demand[K, T]] = {}
        #: Leased things that will be given back.
        self.in_use: dict[T, Item[K, T]] = {}
        self.maker: threading.Thread | None = None
        #: Whether the maker is making something now, even if it is no longer wanted.
        self.is_making = False

    def use(self, key: K, now: float) -> Demand[K, T]:
        """The demand for a key, which becomes the most recently used one."""
        demand = self.demands.pop(key, None) or Demand(min(self.smallest, self.largest))
        self.demands[key] = demand
        demand.last_used = self.last_used = now
        return demand

    def take_ready(self, key: K, now: float) -> T | None:
        """Removes and returns the oldest ready thing. If there is none, raises the target; the caller makes one."""
        with self.lock:
            demand = self.use(key, now)
            if demand.ready:
                return demand.ready.popleft().take_out()
            demand.target = min(self.largest, self.raise_target(demand.target))
            return None

    def raise_target(self, target: int) -> int:
        """The new target of a key that had nothing ready."""
        return max(target * 2, 1)

    def lower_targets(self, now: float) -> None:
        """Lowers the targets of keys that are not used any more."""
        for demand in self.demands.values():
            idle = now - demand.last_used
            if idle > IDLE_SECONDS:
                demand.target = min(demand.target, self.smallest if idle <= 10 * IDLE_SECONDS else 0)

    def lease_best(self, keys: Iterable[K], rank: Callable[[T], int | None]) -> T | None:
        """Leases the ready thing with the lowest rank, the newest of equals. Rank None means unsuitable."""
        with self.lock:
            demands = filter(None, map(self.demands.get, keys))
            ready = [(rank(item.thing), item, demand) for demand in demands for item in reversed(demand.ready)]
            suitable = [(found, item, demand) for found, item, demand in ready if found is not None]
            if not suitable:
                return None
            _, item, demand = min(suitable, key=lambda each: each[0])
            demand.ready.remove(item)
            return self._lease(item)

    def add_leased(self, key: K, thing: T) -> None:
        """Adds a thing that the caller made for its own immediate use."""
        item: Item[K, T] = Item(key)
        item.thing = thing
        with self.lock:
            self._lease(item)

    def _lease(self, item: Item[K, T]) -> T:
        item.state = LEASED
        self.in_use[item.thing] = item
        return item.thing

    def give_back(self, thing: T, key: K, now: float) -> bool:
        """Returns a leased thing to the supply, under `key`. If it returns False, the caller ends the thing."""
        with self.lock:
            item = self.in_use.pop(thing, None)
            if item is None:
                return False
            item.key = key
            return self._make_ready(item, self.use(key, now), now)

    def forget(self, thing: T) -> None:
        """Called when a leased thing has ended."""
        with self.lock:
            if (item := self.in_use.pop(thing, None)) is not None:
                item.take_out()

    def room(self) -> int:
        """How many of all keys together may be ready or being made."""
        return self.total

    def _shares(self) -> dict[K, int]:
        """How many each key may have, most recently used first."""
        shares = dict.fromkeys(reversed(self.demands), 0)
        left = self.room()
        while left > 0 and (below := [key for key in shares if shares[key] < self.demands[key].target][:left]):
            for key in below:
                shares[key] += 1
            left -= len(below)
        return shares

    def start_making(self, most: int = _ALL) -> list[Item[K, T]]:
        """What to make now, most recently used keys first. The caller calls `finish` or `fail` for each."""
        with self.lock:
            room = min(most, self.room() - sum(demand.count for demand in self.demands.values()))
            items: list[Item[K, T]] = []
            for key, share in self._shares().items():
                demand = self.demands[key]
                for _ in range(min(share - demand.count, room - len(items))):
                    items.append(Item(key))
                    demand.making.add(items[-1])
            return items

    def finish(self, item: Item[K, T], thing: T, now: float) -> bool:
        """Marks a made thing as ready. If it returns False, the demand is gone and the caller ends the thing."""
        with self.lock:
            if item.state != MAKING:
                return False
            item.thing, demand = thing, self.demands[item.key]
            demand.making.remove(item)
            return self._make_ready(item, demand, now)

    def _make_ready(self, item: Item[K, T], demand: Demand[K, T], now: float) -> bool:
        item.state, item.since = GONE if self.is_closed else READY, now
        if not self.is_closed:
            demand.ready.append(item)
        return not self.is_closed

    def fail(self, item: Item[K, T]) -> None:
        """Makes no more of the item's key until one is missing again. Does nothing if the item is finished."""
        with self.lock:
            if item.state == MAKING:
                item.state, demand = GONE, self.demands[item.key]
                demand.making.remove(item)
                demand.target = min(demand.target, len(demand.ready))

    def surplus(self, now: float) -> list[T]:
        """Removes and returns ready things over their key's share, which the caller ends."""
        with self.lock:
            self.lower_targets(now)
            things: list[T] = []
            for key, share in self._shares().items():
                demand = self.demands[key]
                things += [demand.ready.popleft().take_out() for _ in range(len(demand.ready) - share)]
                if not (share or demand.count):
                    del self.demands[key]
            return things

    def remove(self, is_useless: Callable[[Item[K, T]], bool]) -> list[T]:
        """Removes and returns matching ready things, which the caller ends."""
        with self.lock:
            items = [item for demand in self.demands.values() for item in demand.ready if is_useless(item)]
            for item in items:
                self.demands[item.key].ready.remove(item)
            return [item.take_out() for item in items]

    def clear(self) -> list[T]:
        """Removes all demand and returns all ready things, which the caller ends. What is being made is not kept."""
        with self.lock:
            things = self.remove(lambda _: True)
            for item in [item for demand in self.demands.values() for item in demand.making]:
                item.state = GONE
            self.demands.clear()
            return things

    def shed(self) -> bool:
        """Ends what is ready. Returns whether there was anything."""
        things = self.clear()
        self.end(things)
        return bool(things)

    def ready(self) -> list[T]:
        with self.lock:
            return [item.thing for demand in self.demands.values() for item in demand.ready]

    def start_maker(self) -> None:
        """Starts the maker. If no thread can be started, things are made when needed and stay until they are used."""
        with self.lock, suppress(SandboxError):
            if self.maker is None and not self.is_closed:
                self.maker = start_daemon(self._run_maker, name=f"warmcell-{type(self).__name__}")

    def stop_maker(self, seconds: float) -> None:
        """Closes the supply and waits a bounded time for the maker to end."""
        with self.lock:
            self.is_closed = True
            self.changed.notify_all()
            maker = self.maker
        if maker is not None and maker is not threading.current_thread():
            maker.join(seconds)

    def pause(self) -> None:
        """Called by the maker before each round."""

    def make_ahead(self, key: K) -> T | None:
        """Called by the maker. None if the thing could not be made or exists already."""
        raise NotImplementedError

    def end(self, things: list[T]) -> None:
        """Called by the maker and by `shed`."""
        raise NotImplementedError

    def _run_maker(self) -> None:
        try:
            while self._work_once():
                pass
        finally:
            with self.lock:
                if self.maker is threading.current_thread():
                    self.maker = None

    def _work_once(self) -> bool:
        """Makes and ends what is due, or waits for a change. Returns whether to go on."""
        self.pause()
        with self.lock:
            surplus, wanted = ([], []) if self.is_closed else (self.surplus(time.monotonic()), self.start_making())
            is_due = surplus or wanted
            if self.is_closed or not (is_due or self.changed.wait(self.check_seconds) or self.demands):
                self.maker = None  # under the lock, so that a new demand starts another maker
                return False
            self.is_making = bool(wanted)
        try:
            if surplus:
                self.end(surplus)
            for item in wanted:
                thing = self.make_ahead(item.key)
                if thing is not None and not self.finish(item, thing, time.monotonic()):
                    self.end([thing])
                self.fail(item)  # does nothing if it is ready
        finally:
            self.is_making = False
            for item in wanted:
                self.fail(item)  # those that an unexpected error left unmade
        return True


class WarmCellBudget:
    """Bounds the warm cells of the whole program, because idle cells use its descriptors. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: WeakSet[Supply[Any, Any]] = WeakSet()

    def enter(self, pool: Supply[Any, Any]) -> None:
        with self._lock:
            self._pools.add(pool)

    def has_room_for(self, pool: Supply[Any, Any], descriptors: int) -> bool:
        """Whether `pool` may keep one more cell of so many descriptors. If the budget is used up, sheds an idle pool.

        A pool in use is never shed: with more pools than the budget allows, every run would end the next one's cell.
        """
        with self._lock:
            counts = {pool: len(pool.ready()) for pool in self._pools}
        if sum(counts.values()) < most_waiting(descriptors):
            return True
        others = [other for other, count in counts.items() if count and other is not pool]
        idlest = min(others, key=lambda other: other.last_used, default=None)
        if idlest is None or time.monotonic() - idlest.last_used < IDLE_SECONDS:
            return False
        return idlest.shed()


def most_waiting(descriptors_of_a_cell: int) -> int:
    """How many warm cells the current limit on descriptors allows."""
    import resource  # not needed without warm cells

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MOST_WARM
    return min(_MOST_WARM, allowed // (_SHARE_OF_DESCRIPTORS * descriptors_of_a_cell))


warm_cell_budget = WarmCellBudget()

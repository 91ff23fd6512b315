"""Random policies and programs, and a checker outside that compares the host with what the policy allows.

`scripts/siege --minutes 30` by hand; it prints the case that broke something, and `--case` tries it again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.contract.processes import alive, descendants
from tests.helpers import eventually
from tests.siege.cases import DIRECTORIES, FILES, GUEST, LINKS, Case, cases, smaller

from warmcell import ExecRequest, Limits, PolicyViolation, ProcessBackend, SandboxError, SandboxPolicyBuilder
from warmcell.core.errors import EnforcerUnavailable
from warmcell.languages.config import ProcessConfig


class Rule(NamedTuple):
    """What one line of a policy means: this of the host, shown there."""

    source: str
    target: str
    is_writable: bool


class Host:
    """A tree with a canary in every file, a secret beside it, sockets that no guest may reach, and a warm backend."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory)
        self.tree = os.path.join(self._directory, "tree")
        self.secret = f"secret-{os.urandom(8).hex()}"
        self._reached: list[str] = []
        self._listeners = [_listener(("127.0.0.1", 0), socket.AF_INET)]
        self.port = int(self._listeners[0].getsockname()[1])
        self._listeners.append(_listener(f"\0warmcell-siege-{self.port}", socket.AF_UNIX))
        self._in_tree: socket.socket | None = None
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self._warm = ProcessBackend(ProcessConfig(pool_size=0, pool_min=0))
        outside = os.path.join(self._directory, "outside")
        os.mkdir(outside)
        Path(outside, "secret").write_text(self.secret)
        self.make_tree()
        for rules in ([], [("a", "r", None)]):  # one zygote for cases without a name of ours, and one for all others
            self._run({"rules": rules, "acts": []})
        self._processes = alive(descendants())
        self.tried = self.refused = 0

    def close(self) -> None:
        self._warm.close()
        for listener in [*self._listeners, *filter(None, [self._in_tree])]:
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return
            self._reached.append(repr(listener))

    def make_tree(self) -> None:
        _remove(self.tree)
        for name in DIRECTORIES:
            os.makedirs(f"{self.tree}/{name}", exist_ok=True)
        for name in FILES:
            Path(self.tree, name).write_text(self.canary(name))
        for name, leads_to in LINKS.items():
            os.symlink(leads_to, f"{self.tree}/{name}")
        if self._in_tree is not None:
            self._in_tree.close()
        self._in_tree = _listener_in(f"{self.tree}/a", "socket")
        threading.Thread(target=self._accept, args=(self._in_tree,), daemon=True).start()

    def canary(self, name: str) -> str:
        return f"canary-{name.replace('/', '.')}-{self.secret[-6:]}"

    def try_case(self, case: Case) -> list[str]:
        """Runs a case and returns the broken promises."""
        self.make_tree()
        before = self.state()
        rules = [self._rule(*rule) for rule in case["rules"]]
        self.tried += 1
        try:
            said = self._run(case)
        except (PolicyViolation, EnforcerUnavailable):
            self.refused += 1
            said = ""
        except SandboxError as error:
            said = str(getattr(error, "result", None) and error.result.stdout)  # type: ignore[attr-defined]
            if error.fault == "host":
                return [f"neither held nor refused when it was built: {error}"]
        return [*self._find_forbidden_changes(before, rules), *self._find_secrets(said, rules), *self._find_leftovers()]

    def _run(self, case: Case) -> str:
        builder = SandboxPolicyBuilder().allow_process_spawn()
        for name, mode, place in case["rules"]:
            allow = builder.allow_read_write if mode == "rw" else builder.allow_read
            builder = allow(f"{self.tree}/{name}", at=place)
        backend = ProcessBackend(ProcessConfig(pool_size=0, pool_min=0), policy=builder.build())
        backend._launcher.pool.close()
        backend._launcher.pool = self._warm._launcher.pool  # the managers serve all cases: the policy is the cell's
        acts = json.dumps(case["acts"]).replace("~", self.tree)
        request = ExecRequest("python", GUEST.format(acts=acts, port=self.port), 15, limits=Limits(processes=40))  # type: ignore[arg-type]
        try:
            return backend.execute_blocking(request).stdout
        finally:
            backend._runs.close()

    def _rule(self, name: str, mode: str, place: str | None) -> Rule:
        path = f"{self.tree}/{name}"
        return Rule(os.path.realpath(path), place or path, mode == "rw")

    def state(self) -> dict[str, object]:
        """Everything on disk that a guest could have had a hand in, by path."""
        found: dict[str, object] = {}
        for directory, directories, files in os.walk(self._directory, onerror=_grant_and_raise):
            for name in [*directories, *files]:
                path = os.path.join(directory, name)
                found[path] = _state(path)
        return found

    def _find_forbidden_changes(self, before: dict[str, object], rules: list[Rule]) -> list[str]:
        after = self._state_at_any_cost()
        paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        return [
            f"changed: {path}: {before.get(path)} -> {after.get(path)}" for path in paths if not may(rules, path, "w")
        ]

    def _state_at_any_cost(self) -> dict[str, object]:
        """Modes first, since a guest may have closed what is its own to change; they are part of the state."""
        modes: dict[str, int] = {}
        waiting = [self._directory]
        while waiting:
            path = waiting.pop()
            modes[path] = os.lstat(path).st_mode & 0o7777
            if modes[path] & 0o700 != 0o700:
                os.chmod(path, 0o700)
            waiting += [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
        found = self.state()
        for path, mode in modes.items():
            if path in found:
                kind, _, content = found[path]  # type: ignore[misc]
                found[path] = (kind, mode, content)
        return found

    def _find_secrets(self, said: str, rules: list[Rule]) -> list[str]:
        faults = ["the secret was read"] if self.secret in said else []
        unreadable = [name for name in FILES if not may(rules, f"{self.tree}/{name}", "r")]
        faults += [f"was read: {name}" for name in unreadable if self.canary(name) in said]
        return faults + [f"was reached: {self._reached.pop()}" for _ in list(self._reached)]

    def _find_leftovers(self) -> list[str]:
        # A watcher and a spare init may have come; what a case leaves is there for thirty seconds.
        if eventually(lambda: len(alive(descendants()) - self._processes) <= 2):
            return []
        return [f"processes are left: {alive(descendants()) - self._processes}"]


def may(rules: list[Rule], path: str, mode: str) -> bool:
    """Whether a policy lets a guest read or write what stands at this path of the host, by any place that shows it."""
    for rule in rules:
        if path != rule.source and not path.startswith(rule.source + "/"):
            continue
        place = rule.target + path[len(rule.source) :]
        covering = [other for other in rules if place == other.target or place.startswith(other.target + "/")]
        deepest = max(covering, key=lambda other: (len(other.target), other.is_writable))
        shows = deepest.source + place[len(deepest.target) :]
        if shows == path and (mode == "r" or deepest.is_writable):
            return True
    return False


def _state(path: str) -> tuple[int, int, str]:
    status = os.lstat(path)
    kind = status.st_mode & 0o170000
    content = os.readlink(path) if kind == 0o120000 else ""
    if kind == 0o100000:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW) if status.st_mode & 0o400 else _open_and_restore(path)
        with os.fdopen(descriptor, errors="replace") as file:
            content = file.read(4096)
    return kind, status.st_mode & 0o7777, content


def _open_and_restore(path: str) -> int:
    """A file that its guest closed to everyone, looked into and left as it was."""
    mode = os.lstat(path).st_mode & 0o7777
    os.chmod(path, 0o600)
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    finally:
        os.chmod(path, mode)


def _grant_and_raise(error: OSError) -> None:
    raise error


def _remove(path: str) -> None:
    from warmcell.workspace.remove import remove_directory

    if os.path.lexists(path):
        remove_directory(path)


def _listener(address: Any, family: int) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    return listener


def _listener_in(directory: str, name: str) -> socket.socket:
    """By way of the open directory: the path of a temporary one may be longer than an address may be."""
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        return _listener(f"/proc/self/fd/{place}/{name}", socket.AF_UNIX)
    finally:
        os.close(place)


@contextmanager
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="siege-") as directory:
        os.chmod(directory, 0o755)
        made = Host(directory)
        try:
            yield made
        finally:
            made.close()
            _remove(made.tree)
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(directory, exist_ok=True)


class Broken(AssertionError):
    """A case that the cage did not hold."""

    def __init__(self, case: Case, faults: list[str]) -> None:
        super().__init__("\n".join([*faults, f"try it again: scripts/siege --case {json.dumps(json.dumps(case))}"]))
        self.case = case


def fuzz(made: Host, examples: int, number: int | None = None) -> None:
    """Raises `Broken`, with the smallest case that was found. Without a number the cases are the same each time."""
    options = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=number is None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    found: list[Case] = []

    @options
    @given(cases)
    def attempt(case: Case) -> None:
        if not found and made.try_case(case):
            found.append(case)

    run: Callable[[], None] = attempt if number is None else seed(number)(attempt)
    run()
    if found:
        raise Broken(*_shrink(made, found[0]))


def _shrink(made: Host, case: Case) -> tuple[Case, list[str]]:
    """As long as leaving something out breaks it all the same. A case that only broke once stays as it is."""
    faults = made.try_case(case) or ["it broke once, and not again"]
    for candidate in smaller(case):
        if made.try_case(candidate):
            return _shrink(made, candidate)
    return case, faults


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/siege", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=json.loads, help="one case, as it was printed")
    options = parser.parse_args(arguments)
    with host() as made:
        if options.case:
            faults = made.try_case(options.case)
            print("\n".join(faults) or "held")
            return 1 if faults else 0
        until, number = time.monotonic() + options.minutes * 60, options.seed
        print(f"seed {number}, as {'root' if os.geteuid() == 0 else 'an ordinary user'}", flush=True)
        while time.monotonic() < until:
            try:
                fuzz(made, 100, number)
            except Broken as broken:
                print(f"seed {number}\n{broken}", flush=True)
                return 1
            number += 1
        print(f"{made.tried} cases held, {made.refused} of them refused when the policy was built")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

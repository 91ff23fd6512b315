"""Proves that bubblewrap isolates on this host: a child in a cage reports what it sees."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from warmcell.core.errors import EnforcerUnavailable
from warmcell.enforcers.host import FileStamp, signals_for_child
from warmcell.lifetime.temporary_directory import temporary_directory

NAME = "bubblewrap"
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts")
_DEADLINE = 15.0

#: One fact per line. Shell builtins and readlink only, which every /usr has.
_LOOK_AROUND = """
for n in user mnt pid net ipc uts; do echo "namespace $n $(readlink /proc/self/ns/$n)"; done
while read -r line; do echo "net $line"; done </proc/net/dev
while read -r line; do echo "status $line"; done </proc/self/status
for f in /tmp/* /tmp/.[!.]*; do if [ -e "$f" ]; then echo "tmp $f"; fi; done
if [ -e "$1" ]; then echo "canary $1"; fi
for place in / /usr /etc /dev; do if (: >"$place/.warmcell-probe") 2>/dev/null; then echo "writable $place"; fi; done
if (: >/work/.warmcell-probe) 2>/dev/null; then echo "workspace"; fi
echo "end"
"""

#: Parts of bwrap's messages on hosts without namespaces.
_NO_NAMESPACES = (
    "setting up uid map",
    "No permissions to create",
    "Creating new namespace failed",
    "unshare user ns",
    "Failed RTM_NEWADDR",
    "mount proc",
    "/proc/sys/kernel",
)


#: Turns a command into the same command inside the cage.
Wrap = Callable[[Sequence[str]], list[str]]


@lru_cache(maxsize=8)
def probe(identity: FileStamp, wrap: Wrap) -> None:
    """Once per installation of bwrap. A failure is not cached, since it may have been remedied."""
    try:
        with temporary_directory("probe") as directory:
            canary = Path(directory, "canary")
            canary.write_text("the guest must not see this")
            canary.chmod(0o600)
            report = _run(wrap(["/bin/sh", "-c", _LOOK_AROUND, "sh", str(canary)]))
    except OSError as error:
        hint = "set TMPDIR to a directory with room that may be written to"
        raise EnforcerUnavailable(NAME, f"its probe could not write a file: {error.strerror}", hint=hint) from None
    problems = find_problems(report, host_namespaces())
    if problems:
        raise EnforcerUnavailable(
            NAME, f"{identity[0]} does not isolate: {'; '.join(problems)}", hint="use the native enforcer"
        )


def host_namespaces() -> dict[str, str]:
    return {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES}


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE,
            check=False,
            env={},
            cwd="/",
            preexec_fn=signals_for_child(),
        )
    except subprocess.TimeoutExpired:
        raise EnforcerUnavailable(NAME, f"its probe did not end within {_DEADLINE:g} s") from None
    except OSError as error:
        raise EnforcerUnavailable(NAME, f"its probe did not start: {error.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise EnforcerUnavailable(NAME, said.splitlines()[-1], hint=remedy(said))
    return done.stdout.decode("utf-8", "replace")


def remedy(said: str) -> str:
    """The remedy for an error message of bwrap: if namespaces are the problem, our own."""
    if any(phrase in said for phrase in _NO_NAMESPACES):
        from warmcell.enforcers.probe import measure

        return measure().remedy("user_namespaces") or "allow this program user namespaces"
    return "run `warmcell doctor` for what this host can enforce"


def find_problems(report: str, host: Mapping[str, str]) -> list[str]:
    """Everything in the child's report that a cage should not show. Pure; a missing fact is a problem too."""
    facts: dict[str, list[str]] = {}
    for line in report.splitlines():
        kind, _, value = line.partition(" ")
        facts.setdefault(kind, []).append(value)
    problems = [f"{kind} {value}" for kind in ("tmp", "canary", "writable") for value in facts.get(kind, ())]
    problems += _namespace_problems(facts.get("namespace", []), host)
    problems += _status_problems(facts.get("status", []))
    interfaces = {value.partition(":")[0].strip() for value in facts.get("net", []) if ":" in value}
    if interfaces - {"lo"} or not interfaces:
        problems.append(f"network interfaces {sorted(interfaces)}")
    problems += [f"no {needed}" for needed in ("workspace", "end") if needed not in facts]
    return problems


def _namespace_problems(values: list[str], host: Mapping[str, str]) -> list[str]:
    inside = dict(value.split(" ", 1) for value in values if " " in value)
    return [f"shares the {name} namespace" for name, own in host.items() if inside.get(name, "") in ("", own)]


def _status_problems(lines: list[str]) -> list[str]:
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    kept = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status.get(name) or "f", 16)]
    return [f"keeps capabilities ({name})" for name in kept] + (
        [] if status.get("NoNewPrivs") == "1" else ["can gain privileges (NoNewPrivs)"]
    )

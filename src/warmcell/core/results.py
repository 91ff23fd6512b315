"""ExecResult and its parts, and how they look in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Mapping

from warmcell.core.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
else:  # resolves the annotations without importing `typing`
    Any = object

_MAX_REPR_TEXT = 80
_MAX_HTML_TEXT = 20_000
_BLOCK = "margin:0.2em 0;padding:0.4em 0.6em;white-space:pre-wrap;border-left:3px solid {}"


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a run used, all its processes together. GPU figures are None if the driver reports none.

    `gpu_time` is the time in which a kernel of the run was executing, from the driver's samples.
    """

    cpu_time: float = 0.0
    wall_time: float = 0.0
    peak_memory_bytes: int = 0
    gpu_time: float | None = None
    gpu_peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Enforced:
    """The protections of a run: the mechanism that enforced each, by name, or None where nothing did."""

    isolation_class: str = "none"
    enforcer: str | None = None
    timeout: str | None = None
    memory: str | None = None
    cpu: str | None = None
    processes: str | None = None
    open_files: str | None = None
    disk: str | None = None
    output: str | None = None
    network: str | None = None
    filesystem_read: str | None = None
    filesystem_write: str | None = None
    environment: str | None = None
    syscalls: str | None = None
    #: The device nodes that the guest has; None if it has none.
    gpus: str | None = None
    gpu_memory: str | None = None


@dataclass(frozen=True, slots=True)
class Denial:
    """Something the guest was refused, by which rule, and how the caller (never the guest) could allow it."""

    kind: str
    what: str
    rule: str
    hint: str


@dataclass(frozen=True, slots=True)
class Connection:
    """One tunnel or HTTP request of a guest, or one that was refused. `time` is in seconds since 1970.

    `bytes_sent` went to the host, `bytes_received` came from it, with TLS and HTTP headers; both grow while it is open.
    """

    time: float
    host: str
    port: int
    bytes_sent: int
    bytes_received: int
    rule: str
    is_allowed: bool


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a run. A non-zero exit is a result like any other.

    `duration` counts from the moment the guest could run; `queued` is what the caller waited before that.
    `files` has the fetched files that exist after the run; a file that could not be read is among the denials.
    `connections` has the run's last 1,000 connections through the proxy of its network rules, oldest first.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    signal: int | None = None
    duration: float = 0.0
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    usage: Usage = Usage()
    enforced: Enforced = Enforced()
    outputs: list[dict[str, Any]] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)
    queued: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)
    connections: tuple[Connection, ...] = ()

    def __post_init__(self) -> None:
        if self.stdout and not self.stdout_bytes:
            object.__setattr__(self, "stdout_bytes", self.stdout.encode("utf-8", "surrogatepass"))
        if self.stderr and not self.stderr_bytes:
            object.__setattr__(self, "stderr_bytes", self.stderr.encode("utf-8", "surrogatepass"))

    @property
    def ok(self) -> bool:
        """Whether the guest exited by itself with status 0."""
        return self.exit_code == 0

    def to_dict(self) -> dict[str, Any]:
        """Every field in JSON types. Bytes appear as `..._base64`, and only where they are not the text's UTF-8.

        `connections` appears only if there are any.
        """
        from base64 import b64encode
        from dataclasses import asdict

        plain = asdict(self)
        for name in ("stdout", "stderr"):
            raw: bytes = plain.pop(f"{name}_bytes")
            if not _is_utf8(raw):
                plain[f"{name}_base64"] = b64encode(raw).decode()
        plain["connections"] = list(plain["connections"])
        if not plain["connections"]:
            del plain["connections"]
        plain["files"] = {path: b64encode(content).decode() for path, content in self.files.items()}
        return plain

    def to_json(self) -> str:
        """`to_dict()` as one line of ASCII, safe for any terminal and for lone surrogates."""
        import json

        return json.dumps(self.to_dict(), ensure_ascii=True, default=str)

    def __repr__(self) -> str:
        parts = [f"exit_code={self.exit_code}"]
        if self.signal is not None:
            parts.append(f"signal={self.signal}")
        parts += [f"{name}={_shorten(text)}" for name in ("stdout", "stderr") if (text := getattr(self, name))]
        parts += [f"{len(self.denials)} denials"] * bool(self.denials)
        parts += [f"{len(self.files)} files"] * bool(self.files)
        return f"ExecResult({', '.join(parts)}, {self.duration * 1000:.1f} ms)"

    def _repr_html_(self) -> str:
        """For notebooks. Guest output is escaped: it is text, never markup."""
        from html import escape

        status = "ok" if self.ok else f"exit {self.exit_code}"
        signal = f", signal {self.signal}" if self.signal is not None else ""
        memory = self.usage.peak_memory_bytes >> 20
        facts = f"{status}{signal} &middot; {self.duration * 1000:.1f} ms"
        facts += f" &middot; {memory} MiB" if memory else ""
        facts += f" &middot; {escape(self.enforced.isolation_class)}"
        refused = "".join(
            f"<li>refused: {escape(denial.what)} ({escape(denial.rule)}). {escape(denial.hint)}</li>"
            for denial in self.denials
        )
        refused = f"<ul>{refused}</ul>" if refused else ""
        output = _html_block(self.stdout, "#8885") + _html_block(self.stderr, "#c33")
        return f"<div>{output}<small>{facts}</small>{refused}</div>"


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shorten(text: str) -> str:
    return ascii(text) if len(text) <= _MAX_REPR_TEXT else f"{text[:_MAX_REPR_TEXT]!a}... ({len(text)} characters)"


def _html_block(text: str, colour: str) -> str:
    if not text:
        return ""
    from html import escape

    more = f"\n... ({len(text)} characters in all)" if len(text) > _MAX_HTML_TEXT else ""
    return f'<pre style="{_BLOCK.format(colour)}">{escape(text[:_MAX_HTML_TEXT])}{more}</pre>'

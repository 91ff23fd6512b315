"""The result of a cell. All of it comes from the guest: display it, never run it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from warmcell.core.records import dataclass, field
from warmcell.core.types import Denial, Usage

_SMALL = "max-height:40em;overflow:auto"


@dataclass(frozen=True, slots=True)
class DisplayData:
    """A display of a cell in one or more forms by MIME type: text, base64 for binary data, or JSON.

    `is_result` for the value of its last line. What was shown under a `display_id` may be replaced later: in the same
    cell that has happened already; `is_update` marks a replacement for what an earlier cell showed.
    """

    mime: Mapping[str, str | dict[str, Any]]
    is_result: bool = False
    display_id: str | None = None
    is_update: bool = False

    @property
    def text(self) -> str:
        plain = self.mime.get("text/plain", "")
        return plain if isinstance(plain, str) else ""

    def _repr_html_(self) -> str:
        """For the caller's notebook: the guest's HTML in a sandboxed frame, so that its scripts have no rights."""
        for kind in ("png", "jpeg"):
            if isinstance(data := self.mime.get(f"image/{kind}"), str):
                return f'<img src="data:image/{kind};base64,{escape(data)}">'
        if isinstance(svg := self.mime.get("image/svg+xml"), str):
            return f'<iframe sandbox style="width:100%;height:30em;border:0" srcdoc="{escape(svg)}"></iframe>'
        if isinstance(html := self.mime.get("text/html"), str):
            return f'<iframe sandbox style="width:100%;height:20em;border:0" srcdoc="{escape(html)}"></iframe>'
        return f'<pre style="{_SMALL}">{escape(self.text)}</pre>'


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception of a cell. `traceback` is text, with the cell's own lines."""

    name: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a cell. An error in the cell is part of the result; the session continues.

    `value` is the text of the last line's value. `usage` is reported by the interpreter itself.
    """

    stdout: str = ""
    stderr: str = ""
    outputs: list[DisplayData] = field(default_factory=list)
    value: str | None = None
    error: CellError | None = None
    execution_count: int = 0
    duration: float = 0.0
    usage: Usage = Usage()
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    outputs_truncated: bool = False
    #: What the sandbox was refused while the cell ran, by whichever of its programs.
    denials: list[Denial] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.error is None

    def to_dict(self) -> dict[str, Any]:
        """Every field in JSON types."""
        from dataclasses import asdict

        return asdict(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """For the caller's notebook: HTML, and text without base64 data."""
        texts = [self.stdout, self.stderr, *(output.text for output in self.outputs)]
        texts += [] if self.error is None else [self.error.traceback or str(self.error)]
        return {"text/plain": "\n".join(text.rstrip("\n") for text in texts if text), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        parts = [f'<pre style="{_SMALL}">{escape(text)}</pre>' for text in (self.stdout, self.stderr) if text]
        parts += [output._repr_html_() for output in self.outputs]
        if self.error is not None:
            shown = self.error.traceback or str(self.error)
            parts.append(f'<pre style="{_SMALL};color:#b00">{escape(shown)}</pre>')
        return "\n".join(parts)

"""How results look in terminals and notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmcell.core.types import ExecResult

_LONGEST = 80
_MOST_SHOWN = 20_000
_BLOCK = "margin:0.2em 0;padding:0.4em 0.6em;white-space:pre-wrap;border-left:3px solid {}"


def in_short(result: ExecResult) -> str:
    """One line, whatever the guest printed."""
    said = [f"exit_code={result.exit_code}"]
    if result.signal is not None:
        said.append(f"signal={result.signal}")
    for name in ("stdout", "stderr"):
        text = getattr(result, name)
        if text:
            said.append(f"{name}={_shortened(text)}")
    said += [f"{len(result.denials)} denials"] * bool(result.denials)
    said += [f"{len(result.files)} files"] * bool(result.files)
    return f"ExecResult({', '.join(said)}, {result.duration * 1000:.1f} ms)"


def _shortened(text: str) -> str:
    return ascii(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!a}... ({len(text)} characters)"


def as_html(result: ExecResult) -> str:
    """For notebooks. All that a guest wrote is text in there, never markup."""
    parts = [_block(result.stdout, "#8885"), _block(result.stderr, "#c33")]
    status = "ok" if result.ok else f"exit {result.exit_code}"
    signal = f", signal {result.signal}" if result.signal is not None else ""
    memory = result.usage.peak_memory_bytes >> 20
    facts = f"{status}{signal} &middot; {result.duration * 1000:.1f} ms"
    facts += f" &middot; {memory} MiB" if memory else ""
    facts += f" &middot; {escape(result.enforced.isolation_class)}"
    refused = "".join(
        f"<li>refused: {escape(denial.what)} ({escape(denial.rule)}). {escape(denial.hint)}</li>"
        for denial in result.denials
    )
    refused = f"<ul>{refused}</ul>" if refused else ""
    return f"<div>{''.join(parts)}<small>{facts}</small>{refused}</div>"


def _block(text: str, colour: str) -> str:
    if not text:
        return ""
    cut = text[:_MOST_SHOWN]
    more = f"\n... ({len(text)} characters in all)" if len(text) > _MOST_SHOWN else ""
    return f'<pre style="{_BLOCK.format(colour)}">{escape(cut)}{more}</pre>'

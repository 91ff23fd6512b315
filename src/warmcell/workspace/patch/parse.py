"""Pure module: a patch in either form. Text in, file patches out; nothing is opened."""

from __future__ import annotations

from warmcell.core.types import MIB
from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.patch.agent_form import BEGIN, parse_agent_form
from warmcell.workspace.patch.model import FilePatch
from warmcell.workspace.patch.unified import parse_unified

MAX_PATCH_BYTES = 8 * MIB


def parse_patch(text: str) -> list[FilePatch]:
    """All file patches of a unified diff, or of the form that coding agents write, or `PatchRejected`."""
    if len(text) > MAX_PATCH_BYTES:
        raise PatchRejected(f"the patch is larger than {MAX_PATCH_BYTES} bytes")
    text = _unfenced(text)
    patches = parse_agent_form(text) if text.lstrip().startswith(BEGIN) else parse_unified(text)
    if not patches:
        hint = f"it needs '--- a/file', '+++ b/file' and '@@' lines, or stands between '{BEGIN}' and '*** End Patch'"
        raise PatchRejected("this is not a unified diff", hint=hint)
    return patches


def _unfenced(text: str) -> str:
    """Without the fence that models put around code, and with the end of the last line that they leave off."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("\n```") and "\n" in stripped[:-4]:
        text = stripped[stripped.index("\n") + 1 : -3]
    return text if not text or text.endswith("\n") else text + "\n"

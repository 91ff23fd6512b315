"""The reference of the command, generated from its parser."""

from __future__ import annotations

from warmcell.interfaces.cli.command_table import INSPECT, RUN, SERVE
from warmcell.interfaces.cli.manual import ABOUT, VARIABLES, Page, pages


def command_reference() -> str:
    known = pages()
    lines = ["# The command", "", ABOUT, ""]
    for role in (RUN, SERVE, INSPECT):
        lines += [f"## {role[:1].upper()}{role[1:]}", ""]
        for page in known:
            lines += _section(page) if page.role == role else []
    lines += ["## Environment", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
    return "\n".join([*lines, ""])


def _section(page: Page) -> list[str]:
    lines = [f"### warmcell {page.name}", "", f"{page.summary[:1].upper()}{page.summary[1:]}.", ""]
    lines += ["```text", page.usage, "```", "", "| argument | meaning |", "|---|---|"]
    for argument in page.arguments:
        forms = ", ".join(f"`{form}`" for form in argument.forms).replace("|", "\\|")
        lines.append(f"| {forms} | {argument.help.replace('|', chr(92) + '|')} |")
    return [*lines, "", *(["```text", page.notes, "```", ""] if page.notes else [])]

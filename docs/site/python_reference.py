"""The reference of the Python API as pages for mkdocstrings, from the table of public names."""

from __future__ import annotations

import importlib
import inspect
import re

import warmcell
from warmcell import images, workspaces

#: The names on each page; errors have a page of their own.
PAGES: dict[str, tuple[str, str]] = {
    "running": ("Running code", "run arun ExecRequest ExecResult Language Limits Usage Enforced Denial Outcome"
                " OutputEvent ResultEvent SandboxTool Recorder"),
    "sandboxes": ("Sandboxes", "Sandbox AsyncSandbox MountPoint DirEntry FsChange FileEvent Process AsyncProcess"
                  " ProcessInfo PtySize ExposedPort AsyncExposedPort Session AsyncSession Checkpoint AsyncCheckpoint"
                  " CellResult CellError DisplayData Change CommitReport Conflict Client AsyncClient"),
    "policies": ("Policies", "SandboxPolicy SandboxPolicyBuilder AllowedPath AccessMode NetworkRule"),
    "backends": ("Backends", "ProcessBackend ProcessConfig WasmBackend RayBackend Node FakeBackend get_backend"
                 " SandboxBackend BackendCapabilities EnforcedLimits Program get_enforcer SandboxEnforcer"
                 " WrappedCommand"),
    "network": ("Network", "FetchPolicy FetchRequest FetchResponse RateLimit SafeClient SecretRef Connection"),
    "judging": ("Judging and evaluating", "judge ajudge Case Verdict evaluate aevaluate Summary"),
}  # fmt: skip
#: Their methods are derived from the asynchronous ones when the class is made, which mkdocstrings does not see.
DERIVED = frozenset({"Sandbox", "Session", "Process", "Client"})


def python_pages() -> dict[str, str]:
    """The content of each page. A public name that no page lists is on the first one."""
    homes = {name: module for module, names in warmcell._HOMES.items() for name in names}
    errors = [name for name, module in homes.items() if module == "warmcell.errors"]
    listed = {name for _, names in PAGES.values() for name in names.split()}
    rest = [name for name in homes if name not in {*listed, *errors}]
    pages = {
        f"reference/{page}.md": _page(title, [_entry(homes[name], name) for name in names.split()])
        for page, (title, names) in PAGES.items()
    }
    pages["reference/running.md"] += "".join(f"\n{_entry(homes[name], name)}\n" for name in rest)
    stores = [_entry(module.__name__, name) for module in (images, workspaces) for name in _own_names(module)]
    pages["reference/stores.md"] = _page("Images and workspaces", stores)
    pages["reference/errors.md"] = _page("Errors", [_entry("warmcell.core.errors", name) for name in sorted(errors)])
    return pages


def _own_names(module: object) -> list[str]:
    return [name for name in module.__all__ if not name.endswith(("NotFound", "Invalid"))]  # type: ignore[attr-defined]


def _page(title: str, entries: list[str]) -> str:
    return "\n\n".join([f"# {title}", *entries]) + "\n"


def _entry(module: str, name: str) -> str:
    return _render_derived(module, name) if name in DERIVED else f"::: {module}.{name}"


def _render_derived(module: str, name: str) -> str:
    made = getattr(importlib.import_module(module), name)
    lines = [f"## {name}", *_describe(name, made)]
    for member in dir(made):
        value = inspect.getattr_static(made, member)
        if not member.startswith("_") and inspect.getdoc(getattr(made, member)):
            lines += [f"### {member} {{ #{name.lower()}-{member} }}", *_describe(member, value)]
    return "\n\n".join(lines)


def _describe(name: str, value: object) -> list[str]:
    """The signature and the docstring."""
    if isinstance(value, property):
        signature = f": {inspect.get_annotations(value.fget).get('return', 'Any')}"  # type: ignore[arg-type]
    else:
        signature = _signature(inspect.signature(getattr(value, "__func__", value)))  # type: ignore[arg-type]
    text = re.sub(r"^( +)", "", inspect.getdoc(value) or "", flags=re.M)
    return [f"```python\n{name}{signature}\n```", text]


class _Verbatim:
    """Printed as it is, where `inspect` would print an annotation with quotes and a function with its address."""

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __repr__(self) -> str:
        return self._text


def _signature(found: inspect.Signature) -> str:
    """Without `self`, one parameter in a line if it is long. A blocking method returns the blocking class."""
    returned = re.sub(r"\bAsync", "", str(found.return_annotation))
    shown = []
    for each in found.parameters.values():
        if each.name in ("self", "cls"):
            continue
        annotation = each.annotation if each.annotation is each.empty else _Verbatim(each.annotation)
        default = _Verbatim(each.default.__name__) if inspect.isroutine(each.default) else each.default
        shown.append(each.replace(annotation=annotation, default=default, kind=each.kind))
    made = found.replace(parameters=shown, return_annotation=_Verbatim(returned))
    line = str(made)
    if len(line) <= 90:
        return line
    names = [str(each) for each in shown]
    star = next((place for place, each in enumerate(shown) if each.kind is each.KEYWORD_ONLY), None)
    if star is not None and not any(each.kind is each.VAR_POSITIONAL for each in shown):
        names.insert(star, "*")
    return "(\n" + "".join(f"    {each},\n" for each in names) + f") -> {returned}"

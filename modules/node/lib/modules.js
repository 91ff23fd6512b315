// CommonJS `require` and the resolving and loading of ES modules.
(function (binding, internal, module, exports) {
  'use strict';
  const path = internal('path');
  const fs = internal('fs');
  const { coded } = internal('errors');
  const { isBuiltin, loadBuiltin, plain } = internal('builtins');
  const cache = Object.create(null);

  const isFile = (name) => fs.statSync(name, { throwIfNoEntry: false })?.isFile() ?? false;
  const isDirectory = (name) => fs.statSync(name, { throwIfNoEntry: false })?.isDirectory() ?? false;
  const withoutBom = (text) => (text[0] === '\ufeff' ? text.slice(1) : text);
  const withoutHashbang = (text) => (text.startsWith('#!') ? '//' + text : text);
  const readSource = (name) => withoutHashbang(withoutBom(fs.readFileSync(name, 'utf8')));

  function readPackage(directory) {
    try { return JSON.parse(fs.readFileSync(path.join(directory, 'package.json'), 'utf8')); } catch { return undefined; }
  }

  // "type" of the nearest package.json
  function isModulePackage(file) {
    for (let at = path.dirname(file); ; at = path.dirname(at)) {
      const own = readPackage(at);
      if (own) return own.type === 'module';
      if (at === '/') return false;
    }
  }
  const isEsm = (file) => file.endsWith('.mjs') || (file.endsWith('.js') && isModulePackage(file));

  function asFile(name) { return isFile(name) ? name : ['.js', '.json', '.mjs', '.cjs'].map((suffix) => name + suffix).find(isFile); }
  function asDirectory(name) {
    if (!isDirectory(name)) return undefined;
    const main = readPackage(name)?.main;
    return (main && (asFile(path.join(name, main)) ?? asFile(path.join(name, main, 'index')))) ?? asFile(path.join(name, 'index'));
  }

  function exportTarget(target, isImport) {
    if (typeof target === 'string' || target == null) return target;
    if (Array.isArray(target)) return target.map((each) => exportTarget(each, isImport)).find(Boolean);
    for (const [condition, value] of Object.entries(target)) {
      if (condition === 'default' || condition === 'node' || condition === (isImport ? 'import' : 'require')) { const found = exportTarget(value, isImport); if (found) return found; }
    }
    return undefined;
  }

  function fromPackage(name, from, isImport) {
    const [, packageName, rest] = /^((?:@[^/]+\/)?[^/]+)(\/.*)?$/.exec(name) ?? [];
    for (let at = from; packageName; at = path.dirname(at)) {
      const root = path.join(at, 'node_modules', packageName);
      if (isDirectory(root)) {
        const { exports: map } = readPackage(root) ?? {};
        if (map !== undefined) {
          const table = typeof map === 'string' || Array.isArray(map) || !Object.keys(map).some((key) => key.startsWith('.')) ? { '.': map } : map;
          const target = exportTarget(table[`.${rest ?? ''}`], isImport);
          if (target) return path.join(root, target);
          throw coded(Error, 'ERR_PACKAGE_PATH_NOT_EXPORTED', `Package subpath '.${rest ?? ''}' is not defined by "exports" in ${root}/package.json`);
        }
        const found = rest ? asFile(root + rest) ?? asDirectory(root + rest) : asDirectory(root);
        if (found) return found;
      }
      if (at === '/') return undefined;
    }
    return undefined;
  }

  function resolveRequire(name, parent) {
    if (typeof name !== 'string') throw internal('errors').invalidArgType('id', 'of type string', name);
    if (name === '') throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', "The argument 'id' must be a non-empty string. Received ''");
    const from = parent.directory;
    const isPath = /^(\.{1,2}(\/|$)|\/)/.test(name);
    const target = path.resolve(from, name);
    const found = isPath ? (name.endsWith('/') ? undefined : asFile(target)) ?? asDirectory(target) : fromPackage(name, from, false);
    if (found) return found;
    const error = new Error(`Cannot find module '${name}'${parent.filename ? `\nRequire stack:\n- ${parent.filename}` : ''}`);
    error.code = 'MODULE_NOT_FOUND';
    error.requireStack = parent.filename ? [parent.filename] : [];
    throw error;
  }

  function makeRequire(parent) {
    function require(name) {
      if (typeof name === 'string' && isBuiltin(name) && (name.startsWith('node:') || !name.startsWith('.'))) return loadBuiltin(name);
      return loadFile(resolveRequire(name, parent)).exports;
    }
    require.resolve = (name) => (isBuiltin(name) ? name : resolveRequire(name, parent));
    require.cache = cache;
    require.main = mainModule;
    return require;
  }
  function createRequire(from) {
    const filename = String(from).startsWith('file:') ? internal('url').fileURLToPath(from) : String(from);
    return makeRequire({ filename, directory: filename.endsWith('/') ? filename : path.dirname(filename) });
  }

  let mainModule;
  function makeModule(filename) {
    return { id: filename, path: path.dirname(filename), exports: {}, filename, loaded: false, children: [], paths: [] };
  }

  function loadFile(filename, isMain = false) {
    if (cache[filename]) return cache[filename];
    const own = makeModule(filename);
    if (isMain) { own.id = '.'; mainModule = own; }
    cache[filename] = own;
    try {
      if (filename.endsWith('.json')) own.exports = parseJson(filename);
      else if (isEsm(filename)) own.exports = requireEsm(filename);
      else runCommonJs(own, readSource(filename));
      own.loaded = true;
    } finally {
      if (!own.loaded) delete cache[filename];
    }
    return own;
  }

  function parseJson(filename) {
    try { return JSON.parse(withoutBom(fs.readFileSync(filename, 'utf8'))); } catch (error) {
      if (error instanceof SyntaxError) error.message = `${filename}: ${error.message}`;
      throw error;
    }
  }

  function requireEsm(filename) {
    throw coded(Error, 'ERR_REQUIRE_ESM', `require() of ES Module ${filename} not supported.\nInstead change the require of ${filename} to a dynamic import() which is available in all CommonJS modules.`);
  }

  // Two lines before the file's first, which therefore are numbers -1 and 0 (QuickJS takes 0 itself for "not given").
  const PARAMETERS = '(exports, require, module, __filename, __dirname) {\n\n';
  const wrapped = (keyword, source, filename) => binding.evalScript(`(${keyword} ${PARAMETERS}${source}\n})`, filename, -1, false);
  const compileWrapped = (source, filename) => wrapped('function', source, filename);

  function compiles(source) {
    try { compileWrapped(source, ''); return true; } catch { return false; }
  }

  // The main file may await at its top level; what is required may not, since nobody would wait for it.
  const AsyncFunction = (async () => {}).constructor;
  let running;
  function compileMain(source, filename) {
    try { return compileWrapped(source, filename); } catch (error) {
      try { return wrapped('async function', source, filename); } catch { throw error; }
    }
  }

  function runCommonJs(own, source) {
    const wrapper = (own === mainModule ? compileMain : compileWrapped)(source, own.filename);
    Object.defineProperty(wrapper, 'name', { value: '<moduleWrapper>' });
    const result = Reflect.apply(wrapper, own.exports, [own.exports, makeRequire({ filename: own.filename, directory: own.path }), own, own.filename, own.path]);
    if (wrapper instanceof AsyncFunction) running = result;
  }

  // ---- ES modules; main.c calls the three below ----

  function resolveImport(base, name) {
    if (name.startsWith('node:') || (isBuiltin(name) && !name.startsWith('.'))) {
      if (!isBuiltin(name)) throw coded(Error, 'ERR_UNKNOWN_BUILTIN_MODULE', `No such built-in module: ${name}`);
      return 'node:' + plain(name);
    }
    if (name.startsWith('data:')) return name;
    const from = base.startsWith('/') ? path.dirname(base) : internal('process').process.cwd();
    if (name.startsWith('file:')) return internal('url').fileURLToPath(name);
    if (/^[a-z]+:/.test(name)) throw coded(Error, 'ERR_UNSUPPORTED_ESM_URL_SCHEME', `Only URLs with a scheme in: file, data, and node are supported by the default ESM loader. Received protocol '${/^[a-z]+:/.exec(name)[0]}'`);
    if (!/^(\.{1,2}(\/|$)|\/)/.test(name)) {
      const found = fromPackage(name, from, true);
      if (found) return found;
      throw coded(Error, 'ERR_MODULE_NOT_FOUND', `Cannot find package '${name}' imported from ${base.startsWith('/') ? base : path.join(from, base)}`);
    }
    const target = path.resolve(from, decodeURIComponent(name.replace(/[?#].*$/, '')));
    if (isDirectory(target)) throw coded(Error, 'ERR_UNSUPPORTED_DIR_IMPORT', `Directory import '${target}' is not supported resolving ES modules imported from ${base}`);
    if (!isFile(target)) throw coded(Error, 'ERR_MODULE_NOT_FOUND', `Cannot find module '${target}' imported from ${base.startsWith('/') ? base : path.join(from, base)}`);
    return target;
  }

  const isBinding = (name) => /^[A-Za-z_$][\w$]*$/.test(name) && name !== 'default';
  // A module whose exports are the properties of an object that exists already
  function synthetic(value) {
    const names = value !== null && (typeof value === 'object' || typeof value === 'function') ? Object.keys(value).filter(isBinding) : [];
    const lines = names.map((name, i) => `const v${i} = m.${name}; export { v${i} as ${name} };`);
    return `const m = import.meta.warmcellExports(); export default m;\n${lines.join('\n')}`;
  }

  function existing(name) {
    if (name.startsWith('node:')) return () => loadBuiltin(name);
    if (name.endsWith('.json')) return () => parseJson(name);
    if (name.startsWith('/') && !isEsm(name)) return () => loadFile(name).exports;
    return undefined;
  }

  // A .js file with import or export but no "type" is taken for what it is.
  function looksLikeModule(source) { return /^\s*(import\s*[\w{*'"]|export\s+(default|const|let|var|function|class|async|\{|\*)|export\s*\{)/m.test(source); }

  function loadImport(name) {
    if (name.startsWith('data:')) {
      const [, isBase64, body] = /^data:[^,]*?(;base64)?,(.*)$/s.exec(name);
      return isBase64 ? Buffer.from(body, 'base64').toString() : decodeURIComponent(body);
    }
    if (name.endsWith('.js') && !isEsm(name)) { const source = readSource(name); if (looksLikeModule(source)) return source; }
    const load = existing(name);
    return load ? synthetic(load()) : readSource(name);
  }

  function fillImportMeta(meta, name) {
    if (name.startsWith('/')) {
      meta.dirname = path.dirname(name);
      meta.filename = name;
      meta.url = internal('url').pathToFileURL(name).href;
    } else meta.url = name;
    meta.resolve = (specifier) => { const target = resolveImport(name, specifier); return target.startsWith('/') ? internal('url').pathToFileURL(target).href : target; };
    const load = existing(name);
    if (load) meta.warmcellExports = load;
  }

  Object.assign(exports, { compileWrapped, compiles, running: () => running, makeRequire, createRequire, makeModule, loadFile, resolveImport, loadImport, fillImportMeta, isEsm, readSource, looksLikeModule, asFile, asDirectory });
})

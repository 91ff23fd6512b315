// The modules that `require` and `import` know by name; each entry returns its exports.
(function (binding, internal, module, exports) {
  'use strict';
  const refuse = (what) => () => { throw internal('errors').coded(Error, 'ERR_FEATURE_UNAVAILABLE_ON_PLATFORM', `${what} is not available in this sandbox`); };

  const childProcess = () => Object.fromEntries(['exec', 'execSync', 'execFile', 'execFileSync', 'spawn', 'spawnSync', 'fork'].map((name) => [name, refuse(`child_process.${name}: starting processes`)]));

  class StringDecoder {
    constructor(encoding = 'utf8') { this.encoding = encoding; this.decoder = /^utf-?8$/i.test(encoding) ? new TextDecoder() : null; }
    write(bytes) { return this.decoder ? this.decoder.decode(bytes, { stream: true }) : Buffer.from(bytes).toString(this.encoding); }
    end(bytes) { return (bytes ? this.write(bytes) : '') + (this.decoder ? this.decoder.decode() : ''); }
  }

  const builtins = {
    fs: () => internal('fs'),
    'fs/promises': () => internal('fs').promises,
    path: () => internal('path'),
    'path/posix': () => internal('path'),
    os: () => internal('os'),
    process: () => internal('process').process,
    util: () => internal('util'),
    'util/types': () => internal('util').types,
    assert: () => internal('assert'),
    'assert/strict': () => internal('assert').strict,
    events: () => internal('events'),
    url: () => internal('url'),
    querystring: () => internal('querystring'),
    crypto: () => internal('crypto'),
    buffer: () => internal('buffer'),
    console: () => internal('console'),
    timers: () => { const { setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate, promises } = internal('timers'); return { setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate, promises }; },
    'timers/promises': () => internal('timers').promises,
    readline: () => internal('readline'),
    'readline/promises': () => internal('readline').promises,
    string_decoder: () => ({ StringDecoder }),
    perf_hooks: () => ({ performance: globalThis.performance }),
    child_process: childProcess,
    module: () => ({ createRequire: (from) => internal('modules').createRequire(from), builtinModules: names(), isBuiltin: (name) => isBuiltin(name) }),
  };
  const cache = new Map();
  for (const [name, load] of Object.entries(builtins)) builtins[name] = () => { if (!cache.has(name)) cache.set(name, load()); return cache.get(name); };

  // Known to Node, absent here: say so instead of "cannot find module"
  const absent = ['async_hooks', 'cluster', 'dgram', 'dns', 'http', 'http2', 'https', 'inspector', 'net', 'repl', 'stream', 'stream/promises', 'test', 'tls', 'tty', 'v8', 'vm', 'wasi', 'worker_threads', 'zlib'];
  const plain = (name) => name.replace(/^node:/, '');
  const names = () => Object.keys(builtins);
  const isBuiltin = (name) => Object.hasOwn(builtins, plain(name)) || absent.includes(plain(name));

  function loadBuiltin(name) {
    const key = plain(name);
    if (Object.hasOwn(builtins, key)) return builtins[key]();
    const hint = ['http', 'https', 'net'].includes(key) ? '; use fetch()' : '';
    throw internal('errors').coded(Error, 'ERR_FEATURE_UNAVAILABLE_ON_PLATFORM', `the module '${key}' is not available in this sandbox${hint}`);
  }

  Object.assign(exports, { builtins, isBuiltin, loadBuiltin, plain });
})

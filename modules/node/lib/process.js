// The process object. Everything that belongs to one run is filled by `start`, never before the snapshot.
(function (binding, internal, module, exports) {
  'use strict';
  const EventEmitter = internal('events');
  const { ticks, now } = internal('timers');
  const { coded, codeError, invalidArgType } = internal('errors');
  let directory = '/', startedAt = 0, realDate = Date;

  const process = Object.create(Object.create(EventEmitter.prototype, { constructor: { value: function process() {}, configurable: true, writable: true } }));
  Object.defineProperty(process, Symbol.toStringTag, { value: 'process', configurable: true });

  function hrtime(previous) {
    const nanoseconds = binding.hrtime();
    let seconds = Number(nanoseconds / 1000000000n), rest = Number(nanoseconds % 1000000000n);
    if (previous) {
      seconds -= previous[0];
      rest -= previous[1];
      if (rest < 0) { seconds--; rest += 1e9; }
    }
    return [seconds, rest];
  }
  hrtime.bigint = () => binding.hrtime();

  class Output extends EventEmitter {
    constructor(fd) {
      super();
      Object.assign(this, { fd, writable: true, isTTY: false, columns: undefined, writableLength: 0, writableHighWaterMark: 16384 });
    }
    write(chunk, encoding, callback) {
      if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding];
      if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) throw invalidArgType('chunk', 'of type string or an instance of Buffer or Uint8Array', chunk);
      internal('fs').writeAll(this.fd, typeof chunk === 'string' && encoding && !/^utf-?8$/i.test(encoding) ? Buffer.from(chunk, encoding) : chunk);
      if (callback) process.nextTick(callback);
      return true;
    }
    end(chunk, encoding, callback) {
      if (typeof chunk === 'function') callback = chunk;
      else if (chunk != null) this.write(chunk, encoding);
      if (callback) process.nextTick(callback);
      this.emit('finish');
      return this;
    }
    cork() {}
    uncork() {}
    getColorDepth() { return 1; }
    hasColors() { return false; }
    setDefaultEncoding() { return this; }
    destroy() { return this; }
  }

  Object.assign(process, {
    title: 'node', version: 'v20.0.0', platform: 'linux', arch: 'wasm32', pid: 1, ppid: 0, execArgv: [], execPath: '/usr/bin/node',
    versions: { node: '20.0.0', quickjs: binding.engineVersion }, release: { name: 'node' }, config: { variables: {} }, features: {},
    argv: [], env: {}, exitCode: undefined, hrtime, stdout: null, stderr: null, stdin: null,
    cwd: () => directory,
    chdir(path) {
      const target = internal('path').resolve(String(path));
      let stats;
      try { stats = internal('fs').statSync(target); } catch { throw codeError('ENOENT', 'chdir', directory, target); }
      if (!stats.isDirectory()) throw codeError('ENOTDIR', 'chdir', directory, target);
      directory = target;
    },
    exit(code) {
      if (code !== undefined) process.exitCode = code;
      if (!process._exiting) {
        process._exiting = true;
        process.emit('exit', process.exitCode ?? 0);
      }
      binding.exit(Number(process.exitCode ?? 0));
    },
    reallyExit: (code) => binding.exit(code ?? 0),
    abort() { binding.exit(134); },
    nextTick(callback, ...args) {
      if (typeof callback !== 'function') throw invalidArgType('callback', 'of type function', callback);
      ticks.push(args.length ? () => callback(...args) : callback);
    },
    uptime: () => (now() - startedAt) / 1000,
    memoryUsage: Object.assign(() => { const used = binding.heapUsed(); return { rss: used, heapTotal: used, heapUsed: used, external: 0, arrayBuffers: 0 }; }, { rss: () => binding.heapUsed() }),
    cpuUsage: () => ({ user: Math.round((now() - startedAt) * 1000), system: 0 }),
    emitWarning(warning) {
      const text = warning instanceof Error ? `${warning.name}: ${warning.message}` : `Warning: ${warning}`;
      process.stderr.write(`(node:1) ${text}\n`);
    },
    umask: () => 0o022, getuid: () => 1000, geteuid: () => 1000, getgid: () => 1000, getegid: () => 1000, kill() { throw codeError('EPERM', 'kill'); },
    binding() { throw coded(Error, 'ERR_INVALID_MODULE', 'No such module'); },
    setUncaughtExceptionCaptureCallback() {}, hasUncaughtExceptionCaptureCallback: () => false,
  });
  Object.defineProperty(process, '_exiting', { value: false, writable: true, enumerable: false });

  // Values of process.env are always strings.
  function environment(entries) {
    const convert = (value) => { if (typeof value === 'symbol') throw new TypeError('Cannot convert a Symbol value to a string'); return String(value); };
    return new Proxy(entries, {
      set(target, key, value) { target[key] = convert(value); return true; },
      defineProperty(target, key, descriptor) {
        if ('value' in descriptor) descriptor.value = convert(descriptor.value);
        return Reflect.defineProperty(target, key, { configurable: true, writable: true, enumerable: true, ...descriptor });
      },
    });
  }

  function start(args) {
    process.env = environment(binding.environ());
    const path = internal('path');
    const wanted = process.env.PWD;
    directory = wanted && wanted[0] === '/' ? path.normalize(wanted).replace(/(.)\/$/, '$1') : binding.preopens().find((name) => name[0] === '/') ?? '/';
    startedAt = now();
    process.argv = args;
    process.argv0 = 'node';
    process.stdout = new Output(1);
    process.stderr = new Output(2);
    Object.defineProperty(process, 'stdin', { get: () => internal('stdin').stdin(), configurable: true, enumerable: true });
  }

  Object.assign(exports, { process, start });
})

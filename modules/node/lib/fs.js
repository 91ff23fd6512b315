// node:fs over the preopened directories. The synchronous calls are the source; promises and callbacks are made from them.
(function (binding, internal, module, exports) {
  'use strict';
  const path = internal('path');
  const { systemError, codeError, coded, invalidArgType } = internal('errors');

  const constants = {
    F_OK: 0, R_OK: 4, W_OK: 2, X_OK: 1, COPYFILE_EXCL: 1, O_RDONLY: 0, O_WRONLY: 1, O_RDWR: 2, O_CREAT: 0o100, O_EXCL: 0o200, O_TRUNC: 0o1000,
    O_APPEND: 0o2000, S_IFMT: 0o170000, S_IFREG: 0o100000, S_IFDIR: 0o040000, S_IFLNK: 0o120000,
  };
  const modes = { r: 0, rs: 0, 'r+': 2, 'rs+': 2, w: 0o1101, wx: 0o1301, 'w+': 0o1102, 'wx+': 0o1302, a: 0o2101, ax: 0o2301, 'a+': 0o2102, 'ax+': 0o2302 };

  function toPath(value, name = 'path') {
    if (value instanceof internal('url').URL) value = internal('url').fileURLToPath(value);
    else if (value instanceof Uint8Array) value = binding.utf8Decode(value);
    if (typeof value !== 'string') throw invalidArgType(name, 'of type string or an instance of Buffer or URL', value);
    if (value.includes('\0')) throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', `The argument '${name}' must be a string, Uint8Array, or URL without null bytes. Received ${internal('inspect').inspect(value)}`);
    return value;
  }

  // A trailing slash matters to the host (it demands a directory), "." and ".." must not reach it.
  const absolute = (name) => path.resolve(name);

  function check(result, syscall, name, dest) {
    if (typeof result === 'number' && result < 0) throw systemError(-result, syscall, name, dest);
    return result;
  }

  // Directories that exist only because a preopen lies below them, such as "/" when there is just "/work"
  function mountsBelow(name) {
    const prefix = name === '/' ? '/' : name + '/';
    const below = binding.preopens().filter((mount) => mount.startsWith(prefix) && mount !== prefix).map((mount) => mount.slice(prefix.length).split('/')[0]);
    return [...new Set(below)];
  }

  function flagNumber(flag) {
    if (typeof flag === 'number') return flag;
    if (!(flag in modes)) throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', `The argument 'flags' is invalid. Received ${internal('inspect').inspect(flag)}`);
    return modes[flag];
  }

  const optionsOf = (options) => (typeof options === 'string' ? { encoding: options } : options ?? {});

  function openSync(name, flags = 'r') {
    name = toPath(name);
    return check(binding.open(absolute(name), flagNumber(flags)), 'open', name);
  }
  function closeSync(fd) { check(binding.close(fd), 'close'); }

  function readFileSync(name, options) {
    const { encoding } = optionsOf(options);
    const isText = encoding && /^utf-?8$/i.test(encoding);
    if (encoding && !Buffer.isEncoding(encoding)) throw coded(TypeError, 'ERR_INVALID_ARG_VALUE', `The argument 'encoding' is invalid encoding. Received '${encoding}'`);
    let result;
    if (typeof name === 'number') result = check(binding.readAll(name, isText), 'read');
    else {
      name = toPath(name);
      if (name === '/dev/stdin') return readFileSync(0, options);
      result = binding.readAll(absolute(name), isText);
      if (typeof result === 'number') throw systemError(-result, systemIsDirectory(-result) ? 'read' : 'open', systemIsDirectory(-result) ? undefined : name);
    }
    if (typeof result === 'string') return result;
    const buffer = Buffer.from(result.buffer, result.byteOffset, result.byteLength);
    return encoding && encoding !== 'buffer' ? buffer.toString(encoding) : buffer;
  }
  const systemIsDirectory = (number) => number === binding.errnoNames.EISDIR;

  function bytesOf(data, encoding) {
    if (typeof data === 'string') return encoding && !/^utf-?8$/i.test(encoding) ? Buffer.from(data, encoding) : data;
    if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    throw invalidArgType('data', 'of type string or an instance of Buffer, TypedArray, or DataView', data);
  }

  function writeAll(fd, data) {
    if (typeof data === 'string') { check(binding.writeText(fd, data), 'write'); return; }
    for (let at = 0; at < data.length;) at += check(binding.write(fd, at ? data.subarray(at) : data, -1), 'write');
  }

  function writeFileSync(name, data, options) {
    const { encoding, flag = 'w' } = optionsOf(options);
    const bytes = bytesOf(data, encoding);
    if (typeof name === 'number') return writeAll(name, bytes);
    if (name === '/dev/stdout' || name === '/dev/stderr') return writeAll(name === '/dev/stdout' ? 1 : 2, bytes);
    const fd = openSync(name, flag);
    try { writeAll(fd, bytes); } finally { closeSync(fd); }
  }
  function appendFileSync(name, data, options) { writeFileSync(name, data, { ...optionsOf(options), flag: optionsOf(options).flag ?? 'a' }); }

  function readSync(fd, buffer, offset = 0, length, position = null) {
    if (typeof offset === 'object' && offset !== null) ({ offset = 0, length, position = null } = offset);
    length ??= buffer.byteLength - offset;
    const target = new Uint8Array(buffer.buffer, buffer.byteOffset + offset, length);
    return length === 0 ? 0 : check(binding.read(fd, target, position === null ? -1 : Number(position)), 'read');
  }
  function writeSync(fd, data, offset, length, position) {
    if (typeof data === 'string') {
      const bytes = Buffer.from(data, typeof length === 'string' ? length : 'utf8');
      return check(binding.write(fd, bytes, typeof offset === 'number' ? offset : -1), 'write');
    }
    const bytes = bytesOf(data);
    const part = bytes.subarray(offset ?? 0, (offset ?? 0) + (length ?? bytes.length - (offset ?? 0)));
    return check(binding.write(fd, part, position ?? -1), 'write');
  }

  class Stats {
    constructor([dev, ino, mode, nlink, size, atimeMs, mtimeMs, ctimeMs]) {
      Object.assign(this, { dev, mode, nlink, uid: 0, gid: 0, rdev: 0, blksize: 4096, ino, size, blocks: Math.ceil(size / 512), atimeMs, mtimeMs, ctimeMs, birthtimeMs: ctimeMs,
        atime: new Date(atimeMs), mtime: new Date(mtimeMs), ctime: new Date(ctimeMs), birthtime: new Date(ctimeMs) });
    }
  }
  class Dirent {
    constructor(name, parent, kind) { this.name = name; this.parentPath = parent; this.path = parent; Object.defineProperty(this, 'mode', { value: [0o020000, 0o100000, 0o040000, 0o120000][kind] }); }
  }
  const kinds = { isFile: 0o100000, isDirectory: 0o040000, isSymbolicLink: 0o120000, isFIFO: 0o010000, isSocket: 0o140000, isCharacterDevice: 0o020000, isBlockDevice: 0o060000 };
  for (const [name, type] of Object.entries(kinds)) {
    for (const Type of [Stats, Dirent]) Object.defineProperty(Type.prototype, name, { value() { return (this.mode & 0o170000) === type; }, writable: true, configurable: true });
  }

  function statAny(name, isFollowing, options) {
    name = toPath(name);
    const full = absolute(name);
    const result = binding.stat(full, isFollowing);
    if (typeof result !== 'number') return new Stats(result);
    if (mountsBelow(full).length) return new Stats([0, 0, 0o040755, 1, 0, 0, 0, 0]);
    const error = systemError(-result, isFollowing ? 'stat' : 'lstat', name);
    if (options?.throwIfNoEntry === false && (error.code === 'ENOENT' || error.code === 'ENOTDIR')) return undefined;
    throw error;
  }
  const statSync = (name, options) => statAny(name, true, options);
  const lstatSync = (name, options) => statAny(name, false, options);
  const fstatSync = (fd) => new Stats(check(binding.fstat(fd), 'fstat'));

  function existsSync(name) {
    try { statAny(name, true); return true; } catch { return false; }
  }
  function accessSync(name) {
    try { statAny(name, true); } catch (error) { throw error.code ? codeError(error.code, 'access', name) : error; }
  }

  function entriesOf(name) {
    const full = absolute(name);
    let flat = binding.readdir(full);
    if (typeof flat === 'number') {
      const mounts = mountsBelow(full);
      if (!mounts.length) throw systemError(-flat, 'scandir', name);
      flat = mounts.flatMap((mount) => [mount, 2]);
    }
    const entries = [];
    for (let i = 0; i < flat.length; i += 2) entries.push([flat[i], flat[i + 1]]);
    return entries.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  }

  function readdirSync(name, options) {
    name = toPath(name);
    const { withFileTypes, recursive } = optionsOf(options);
    const found = [];
    const visit = (directory, prefix) => {
      for (const [entry, kind] of entriesOf(directory)) {
        found.push(withFileTypes ? new Dirent(entry, directory, kind) : prefix + entry);
        if (recursive && kind === 2) visit(path.join(directory, entry), `${prefix}${entry}/`);
      }
    };
    visit(name, '');
    return found;
  }

  function mkdirSync(name, options) {
    name = toPath(name);
    const isRecursive = typeof options === 'object' && options?.recursive;
    const full = absolute(name);
    if (!isRecursive) { check(binding.mkdir(full), 'mkdir', name); return undefined; }
    const missing = [];
    for (let at = full; !existsSync(at); at = path.dirname(at)) missing.unshift(at);
    if (!missing.length && !statSync(full).isDirectory()) throw codeError('EEXIST', 'mkdir', name);
    for (const each of missing) check(binding.mkdir(each), 'mkdir', name);
    return missing[0];
  }

  function rmSync(name, options = {}) {
    name = toPath(name);
    const full = absolute(name);
    const stats = lstatSync(full, { throwIfNoEntry: false });
    if (!stats) {
      if (options.force) return;
      throw codeError('ENOENT', 'rm', name);
    }
    if (!stats.isDirectory()) { check(binding.unlink(full), 'rm', name); return; }
    if (!options.recursive) {
      const error = coded(Error, 'ERR_FS_EISDIR', `Path is a directory: rm returned EISDIR (is a directory) ${name}`);
      error.name = 'SystemError';
      throw error;
    }
    for (const [entry] of entriesOf(full)) rmSync(`${full}/${entry}`, options);
    check(binding.rmdir(full), 'rm', name);
  }
  function rmdirSync(name, options) {
    if (options?.recursive) return rmSync(name, { recursive: true });
    check(binding.rmdir(absolute(toPath(name))), 'rmdir', name);
  }

  const onePath = (call) => (name) => { name = toPath(name); check(binding[call](absolute(name)), call, name); };
  const twoPaths = (call) => (from, to) => { from = toPath(from); to = toPath(to); check(binding[call](absolute(from), absolute(to)), call, from, to); };

  function symlinkSync(target, name) {
    target = toPath(target, 'target');
    name = toPath(name);
    const error = (code) => codeError(code, 'symlink', target, name);
    if (path.isAbsolute(target)) throw error('EPERM'); // the host follows no absolute links
    check(binding.symlink(target, absolute(name)), 'symlink', target, name);
  }
  function readlinkSync(name) { name = toPath(name); return check(binding.readlink(absolute(name)), 'readlink', name); }

  function copyFileSync(from, to, mode = 0) {
    from = toPath(from, 'src');
    to = toPath(to, 'dest');
    const bytes = binding.readAll(absolute(from), false);
    if (typeof bytes === 'number') throw systemError(-bytes, 'copyfile', from, to);
    const fd = binding.open(absolute(to), mode & constants.COPYFILE_EXCL ? modes.wx : modes.w);
    if (fd < 0) throw systemError(-fd, 'copyfile', from, to);
    try { writeAll(fd, bytes); } finally { closeSync(fd); }
  }
  function cpSync(from, to, options = {}) {
    const stats = statSync(from);
    if (!stats.isDirectory()) return copyFileSync(from, to, options.errorOnExist && !options.force ? constants.COPYFILE_EXCL : 0);
    if (!options.recursive) throw coded(Error, 'ERR_FS_EISDIR', `Recursive option not enabled, cannot copy a directory: cp returned EISDIR (${from} is a directory (not copied)) ${from}`);
    mkdirSync(to, { recursive: true });
    for (const name of readdirSync(from)) cpSync(path.join(from, name), path.join(to, name), options);
  }

  function realpathSync(name) {
    name = toPath(name);
    let done = '/', left = absolute(name).split('/').filter(Boolean), hops = 0;
    while (left.length) {
      const part = left.shift();
      if (part === '..') { done = path.dirname(done); continue; }
      const next = path.join(done, part);
      if (lstatSync(next).isSymbolicLink()) {
        if (++hops > 40) throw codeError('ELOOP', 'realpath', name);
        left = [...readlinkSync(next).split('/').filter(Boolean), ...left];
      } else done = next;
    }
    return done;
  }
  realpathSync.native = realpathSync;

  function truncateSync(name, length = 0) { const fd = openSync(name, 'r+'); try { ftruncateSync(fd, length); } finally { closeSync(fd); } }
  function ftruncateSync(fd, length = 0) { check(binding.ftruncate(fd, length), 'ftruncate'); }
  const toMilliseconds = (time) => (time instanceof Date ? time.getTime() : Number(time) * 1000);
  function utimesSync(name, atime, mtime) { name = toPath(name); check(binding.utimes(absolute(name), toMilliseconds(atime), toMilliseconds(mtime)), 'utime', name); }
  function mkdtempSync(prefix) {
    const letters = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789';
    const random = new Uint8Array(6);
    binding.randomFill(random);
    const name = prefix + Array.from(random, (byte) => letters[byte % letters.length]).join('');
    mkdirSync(name);
    return name;
  }
  function permissionsAreFixed(name) { accessSync(name); } // WASI has no permissions to change

  const sync = {
    openSync, closeSync, readFileSync, writeFileSync, appendFileSync, readSync, writeSync, statSync, lstatSync, fstatSync, existsSync, accessSync, readdirSync, mkdirSync,
    rmSync, rmdirSync, unlinkSync: onePath('unlink'), renameSync: twoPaths('rename'), linkSync: twoPaths('link'), symlinkSync, readlinkSync, copyFileSync, cpSync, realpathSync,
    truncateSync, ftruncateSync, utimesSync, lutimesSync: utimesSync, mkdtempSync, chmodSync: permissionsAreFixed, chownSync: permissionsAreFixed, fsyncSync() {}, fdatasyncSync() {},
  };

  const later = (call) => new Promise((resolve, reject) => internal('timers').later(() => { try { resolve(call()); } catch (error) { reject(error); } }));
  const promises = { constants };
  const callbacks = {};
  for (const [name, call] of Object.entries(sync)) {
    const short = name.slice(0, -4);
    promises[short] = { [short]: (...args) => later(() => call(...args)) }[short];
    callbacks[short] = { [short](...args) {
      const callback = args.pop();
      if (typeof callback !== 'function') throw invalidArgType('cb', 'of type function', callback);
      internal('timers').later(() => {
        let result;
        try { result = call(...args); } catch (error) { callback(error); return; }
        callback(null, result);
      });
    } }[short];
  }
  delete promises.exists;
  callbacks.exists = (name, callback) => internal('timers').later(() => callback(existsSync(name)));
  callbacks.read = (fd, buffer, offset, length, position, callback) => internal('timers').later(() => { try { callback(null, readSync(fd, buffer, offset, length, position), buffer); } catch (error) { callback(error); } });

  class FileHandle {
    constructor(fd) { this.fd = fd; }
    readFile(options) { return later(() => readFileSync(this.fd, options)); }
    writeFile(data, options) { return later(() => writeFileSync(this.fd, data, options)); }
    appendFile(data, options) { return this.writeFile(data, options); }
    read(buffer, offset, length, position) { return later(() => ({ bytesRead: readSync(this.fd, buffer, offset, length, position), buffer })); }
    write(data, ...rest) { return later(() => ({ bytesWritten: writeSync(this.fd, data, ...rest), buffer: data })); }
    stat() { return later(() => fstatSync(this.fd)); }
    truncate(length) { return later(() => ftruncateSync(this.fd, length)); }
    sync() { return later(() => {}); }
    close() { return later(() => { if (this.fd >= 0) closeSync(this.fd); this.fd = -1; }); }
    async *readLines() { for (const line of (await this.readFile('utf8')).split(/\r?\n/).filter((line, i, all) => line || i < all.length - 1)) yield line; }
  }
  promises.open = (...args) => later(() => new FileHandle(openSync(...args)));

  function createWriteStream(name, options) {
    const { flags = 'w' } = optionsOf(options);
    const EventEmitter = internal('events');
    const stream = new EventEmitter();
    const fd = openSync(name, flags);
    return Object.assign(stream, {
      path: name, bytesWritten: 0, writable: true,
      write(chunk, encoding, callback) {
        if (typeof encoding === 'function') [encoding, callback] = [undefined, encoding];
        const bytes = Buffer.from(bytesOf(chunk, encoding));
        writeAll(fd, bytes);
        stream.bytesWritten += bytes.length;
        if (callback) internal('timers').later(() => callback(null));
        return true;
      },
      end(chunk, encoding, callback) {
        if (typeof chunk === 'function') [chunk, callback] = [undefined, chunk];
        if (chunk != null) stream.write(chunk, encoding);
        closeSync(fd);
        stream.writable = false;
        internal('timers').later(() => { stream.emit('finish'); stream.emit('close'); callback?.(); });
        return stream;
      },
    });
  }

  function createReadStream(name, options) {
    const { encoding, start = 0, end = Infinity, highWaterMark = 65536 } = optionsOf(options);
    const EventEmitter = internal('events');
    const stream = new EventEmitter();
    let position = start, fd, isFlowing = false, decoder = encoding ? new TextDecoder() : null;
    const next = () => {
      fd ??= openSync(name, 'r');
      const buffer = Buffer.alloc(Math.min(highWaterMark, end - position + 1));
      const count = buffer.length ? readSync(fd, buffer, 0, buffer.length, position) : 0;
      position += count;
      if (count === 0) { closeSync(fd); return null; }
      return decoder ? decoder.decode(buffer.subarray(0, count), { stream: true }) : buffer.subarray(0, count);
    };
    const step = () => {
      if (!isFlowing) return;
      let chunk;
      try { chunk = next(); } catch (error) { stream.emit('error', error); return; }
      if (chunk === null) { stream.emit('end'); stream.emit('close'); return; }
      stream.emit('data', chunk);
      internal('timers').later(step);
    };
    const on = stream.on;
    return Object.assign(stream, {
      path: name,
      on(event, listener) { on.call(stream, event, listener); if (event === 'data') stream.resume(); return stream; },
      resume() { if (!isFlowing) { isFlowing = true; internal('timers').later(step); } return stream; },
      pause() { isFlowing = false; return stream; },
      setEncoding() { decoder = new TextDecoder(); return stream; },
      pipe(target) { stream.on('data', (chunk) => target.write(chunk)); stream.on('end', () => { const { process } = internal('process'); if (target !== process.stdout && target !== process.stderr) target.end(); }); return target; },
      destroy() { isFlowing = false; return stream; },
      async *[Symbol.asyncIterator]() { for (;;) { const chunk = await later(next); if (chunk === null) return; yield chunk; } },
    });
  }

  Object.assign(exports, { ...callbacks, ...sync, promises, constants, Stats, Dirent, createReadStream, createWriteStream, watch() { throw codeError('ENOSYS', 'watch'); }, ...constants });
  Object.defineProperty(exports, 'writeAll', { value: writeAll });
})

// Errors in Node's shape: system errors with code and path, coded errors, and `stack` with its header line.
(function (binding, internal, module, exports) {
  'use strict';
  const messages = {
    EACCES: 'permission denied', EAGAIN: 'resource temporarily unavailable', EBADF: 'bad file descriptor',
    EBUSY: 'resource busy or locked', EEXIST: 'file already exists', EFBIG: 'file too large', EINVAL: 'invalid argument',
    EIO: 'i/o error', EISDIR: 'illegal operation on a directory', ELOOP: 'too many symbolic links encountered',
    EMFILE: 'too many open files', EMLINK: 'too many links', ENAMETOOLONG: 'name too long', ENFILE: 'file table overflow',
    ENOENT: 'no such file or directory', ENOMEM: 'not enough memory', ENOSPC: 'no space left on device',
    ENOSYS: 'function not implemented', ENOTDIR: 'not a directory', ENOTEMPTY: 'directory not empty',
    ENOTSUP: 'operation not supported', EPERM: 'operation not permitted', EPIPE: 'broken pipe', EROFS: 'read-only file system',
    ESPIPE: 'invalid seek', EXDEV: 'cross-device link not permitted', EDQUOT: 'disk quota exceeded',
  };
  const linuxNumbers = {
    EPERM: 1, ENOENT: 2, EIO: 5, EBADF: 9, EAGAIN: 11, ENOMEM: 12, EACCES: 13, EBUSY: 16, EEXIST: 17, EXDEV: 18, ENOTDIR: 20,
    EISDIR: 21, EINVAL: 22, ENFILE: 23, EMFILE: 24, EFBIG: 27, ENOSPC: 28, ESPIPE: 29, EROFS: 30, EMLINK: 31, EPIPE: 32,
    ENAMETOOLONG: 36, ENOSYS: 38, ENOTEMPTY: 39, ELOOP: 40, ENOTSUP: 95, EDQUOT: 122,
  };
  const nameOf = new Map(Object.entries(binding.errnoNames).map(([name, number]) => [number, name]));

  function systemError(number, syscall, path, dest) {
    return codeError(nameOf.get(number), syscall, path, dest, number);
  }

  function codeError(code, syscall, path, dest, number) {
    code ??= 'UNKNOWN';
    let text = `${code}: ${messages[code] ?? binding.strerror(number ?? 0)}, ${syscall}`;
    if (path !== undefined) text += ` '${path}'`;
    if (dest !== undefined) text += ` -> '${dest}'`;
    const error = new Error(text);
    error.errno = -(linuxNumbers[code] ?? number ?? 1);
    error.code = code;
    error.syscall = syscall;
    if (path !== undefined) error.path = path;
    if (dest !== undefined) error.dest = dest;
    return error;
  }

  // Errors such as `TypeError [ERR_INVALID_ARG_TYPE]: ...`
  function coded(Base, code, message) {
    const error = new Base(message);
    error.code = code;
    Object.defineProperty(error, codeInHeader, { value: true });
    return error;
  }
  const codeInHeader = Symbol('codeInHeader');

  function describe(value) {
    if (value == null) return ` Received ${value}`;
    if (typeof value === 'function') return ` Received function ${value.name}`;
    if (typeof value === 'object') {
      return value.constructor?.name ? ` Received an instance of ${value.constructor.name}` : ` Received ${internal('inspect').inspect(value, { depth: -1 })}`;
    }
    let text = internal('inspect').inspect(value, { colors: false });
    if (text.length > 28) text = text.slice(0, 25) + '...';
    return ` Received type ${typeof value} (${text})`;
  }

  function invalidArgType(name, expected, value) {
    const kind = name.includes('.') ? 'property' : 'argument';
    return coded(TypeError, 'ERR_INVALID_ARG_TYPE', `The "${name}" ${kind} must be ${expected}.${describe(value)}`);
  }

  function headerOf(error) {
    let name = 'Error', message = '';
    try {
      name = error.name === undefined ? 'Error' : String(error.name);
      message = error.message === undefined ? '' : String(error.message);
      if (error[codeInHeader] && error.code) name += ` [${error.code}]`;
    } catch { /* a hostile getter: keep the defaults */ }
    return name && message ? `${name}: ${message}` : name || message;
  }

  // QuickJS: "    at <anonymous> (file:1:2)"; V8 leaves such names out. Frames of main.c's callers say nothing to anyone.
  function tidyFrames(frames) {
    return frames.trimEnd().split('\n')
      .filter((line) => line.trim() && !line.includes('(node:internal/main') && !line.includes('(node:internal/modules') && !/\((native|missing)\)$/.test(line))
      .map((line) => line.replace(/^ {4}at <(?:anonymous|eval)> \((.*)\)$/, '    at $1').replace('    at <moduleWrapper> (', '    at Object.<anonymous> ('));
  }

  function stackOf(error, frames) {
    return [headerOf(error), ...tidyFrames(frames)].join('\n');
  }

  const originalCapture = Error.captureStackTrace;
  Object.defineProperty(Error, 'captureStackTrace', {
    value: function captureStackTrace(target, above) {
      originalCapture(target, above ?? captureStackTrace);
      const frames = Object.getOwnPropertyDescriptor(target, 'stack')?.value;
      if (typeof frames === 'string') {
        Object.defineProperty(target, 'stack', { value: stackOf(target, frames), writable: true, configurable: true, enumerable: false });
      }
    },
    writable: true, configurable: true,
  });

  Object.defineProperty(Error.prototype, 'stack', {
    get() {
      const frames = binding.errorFrames(this);
      return typeof frames === 'string' ? stackOf(this, frames) : frames ?? undefined;
    },
    set(value) {
      Object.defineProperty(this, 'stack', { value, writable: true, configurable: true, enumerable: false });
    },
    configurable: true,
  });
  Error.stackTraceLimit = 10;

  Object.assign(exports, { systemError, codeError, coded, codeInHeader, invalidArgType, headerOf });
})

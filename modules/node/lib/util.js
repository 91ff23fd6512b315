// node:util
(function (binding, internal, module, exports) {
  'use strict';
  const { inspect, format, formatWithOptions } = internal('inspect');
  const { isDeepStrictEqual } = internal('equal');
  const { codeInHeader, invalidArgType } = internal('errors');
  const promisifyCustom = Symbol.for('nodejs.util.promisify.custom');

  function promisify(original) {
    if (typeof original !== 'function') throw invalidArgType('original', 'of type function', original);
    if (original[promisifyCustom]) return original[promisifyCustom];
    function promisified(...args) {
      return new Promise((resolve, reject) => { Reflect.apply(original, this, [...args, (error, value) => (error ? reject(error) : resolve(value))]); });
    }
    Object.defineProperty(promisified, 'name', { value: original.name });
    return promisified;
  }
  function callbackify(original) {
    return function (...args) {
      const callback = args.pop();
      Reflect.apply(original, this, args).then((value) => internal('process').process.nextTick(callback, null, value), (error) => internal('process').process.nextTick(callback, error ?? new Error('Promise was rejected with falsy value')));
    };
  }
  function inherits(constructor, parent) {
    Object.defineProperty(constructor, 'super_', { value: parent, writable: true, configurable: true });
    Object.setPrototypeOf(constructor.prototype, parent.prototype);
  }
  function deprecate(call, message) {
    let hasWarned = false;
    return function (...args) {
      if (!hasWarned) { hasWarned = true; internal('process').process.emitWarning(`DeprecationWarning: ${message}`); }
      return Reflect.apply(call, this, args);
    };
  }

  const is = (...labels) => (value) => labels.includes(binding.classOf(value));
  const typedName = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag).get;
  const types = {
    isDate: is('Date'), isRegExp: is('RegExp'), isMap: is('Map'), isSet: is('Set'), isWeakMap: is('WeakMap'), isWeakSet: is('WeakSet'), isPromise: is('Promise'), isProxy: (value) => binding.proxyDetails(value) !== undefined,
    isNativeError: is('Error'), isArrayBuffer: is('ArrayBuffer'), isAnyArrayBuffer: is('ArrayBuffer', 'SharedArrayBuffer'), isSharedArrayBuffer: is('SharedArrayBuffer'), isDataView: is('DataView'), isTypedArray: is('TypedArray'),
    isArrayBufferView: ArrayBuffer.isView, isGeneratorObject: is('Generator'), isBoxedPrimitive: is('Number', 'String', 'Boolean', 'BigInt', 'Symbol'), isUint8Array: (value) => typedName.call(value) === 'Uint8Array',
    isMapIterator: is('Map Iterator'), isSetIterator: is('Set Iterator'), isArgumentsObject: is('Arguments'), isModuleNamespaceObject: is('Module'), isNumberObject: is('Number'), isStringObject: is('String'),
    isAsyncFunction: (value) => typeof value === 'function' && /^Async/.test(Object.prototype.toString.call(value).slice(8)), isGeneratorFunction: (value) => typeof value === 'function' && /GeneratorFunction/.test(Object.prototype.toString.call(value)),
  };

  function stripVTControlCharacters(text) { return String(text).replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07/g, ''); }
  function styleText(style, text) {
    const codes = { red: [31, 39], green: [32, 39], yellow: [33, 39], blue: [34, 39], magenta: [35, 39], cyan: [36, 39], white: [37, 39], gray: [90, 39], grey: [90, 39], black: [30, 39], bold: [1, 22], dim: [2, 22], italic: [3, 23], underline: [4, 24], inverse: [7, 27] };
    return [].concat(style).reduceRight((inner, name) => (codes[name] ? `\x1b[${codes[name][0]}m${inner}\x1b[${codes[name][1]}m` : inner), text);
  }

  // util.parseArgs: long and short options, booleans and strings
  function parseArgs({ args = internal('process').process.argv.slice(2), options = {}, strict = true, allowPositionals = !strict, tokens } = {}) {
    const { coded } = internal('errors');
    const values = Object.create(null), positionals = [], rest = [...args];
    const byShort = new Map(Object.entries(options).filter(([, option]) => option.short).map(([name, option]) => [option.short, name]));
    const store = (name, value) => { if (options[name]?.multiple) (values[name] ??= []).push(value); else values[name] = value; };
    while (rest.length) {
      let arg = rest.shift();
      if (arg === '--') { positionals.push(...rest.splice(0)); break; }
      const short = /^-([^-])(.*)$/s.exec(arg), long = /^--([^=]+)(?:=(.*))?$/s.exec(arg);
      if (!short && !long) {
        if (!allowPositionals) throw coded(TypeError, 'ERR_PARSE_ARGS_UNEXPECTED_POSITIONAL', `Unexpected argument '${arg}'. This command does not take positional arguments`);
        positionals.push(arg);
        continue;
      }
      const name = long ? long[1] : byShort.get(short[1]) ?? short[1];
      const option = options[name];
      if (!option && strict) throw coded(TypeError, 'ERR_PARSE_ARGS_UNKNOWN_OPTION', `Unknown option '${long ? '--' + name : '-' + name}'`);
      if (option?.type === 'string') {
        const value = long ? long[2] ?? rest.shift() : short[2] || rest.shift();
        if (value === undefined) throw coded(TypeError, 'ERR_PARSE_ARGS_INVALID_OPTION_VALUE', `Option '--${name} <value>' argument missing`);
        store(name, value);
      } else {
        store(name, long?.[2] ?? true);
        if (short?.[2]) rest.unshift('-' + short[2]);
      }
    }
    for (const [name, option] of Object.entries(options)) if (option.default !== undefined && !(name in values)) values[name] = option.default;
    return { values, positionals };
  }

  promisify.custom = promisifyCustom;
  internal('timers').setTimeout[promisifyCustom] = internal('timers').promises.setTimeout;
  const { TextEncoder, TextDecoder } = internal('web');
  Object.assign(exports, {
    inspect, format, formatWithOptions, promisify, callbackify, inherits, deprecate, types, isDeepStrictEqual, stripVTControlCharacters, styleText, parseArgs, TextEncoder, TextDecoder, debuglog: () => Object.assign(() => {}, { enabled: false }),
    isArray: Array.isArray, isRegExp: types.isRegExp, isDate: types.isDate, isError: types.isNativeError, isBuffer: (value) => Buffer.isBuffer(value), isString: (value) => typeof value === 'string', isObject: (value) => value !== null && typeof value === 'object',
    isFunction: (value) => typeof value === 'function', toUSVString: (text) => String(text).toWellFormed(),
  });
})

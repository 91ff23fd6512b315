// util.inspect and util.format: the text that console.log prints for a value, in Node's layout.
(function (binding, internal, module, exports) {
  'use strict';
  const custom = Symbol.for('nodejs.util.inspect.custom');
  const defaults = {
    showHidden: false, depth: 2, colors: false, customInspect: true, showProxy: false, maxArrayLength: 100,
    maxStringLength: 10000, breakLength: 80, compact: 3, sorted: false, getters: false, numericSeparator: false,
  };
  const styles = { number: [33, 39], bigint: [33, 39], boolean: [33, 39], string: [32, 39], symbol: [32, 39], undefined: [90, 39],
    null: [1, 22], special: [36, 39], date: [35, 39], regexp: [31, 39], module: [4, 24] };
  const isIdentifier = /^[a-zA-Z_][a-zA-Z_0-9]*$/;

  function inspect(value, options, ...legacy) {
    const ctx = { ...defaults, budget: {}, seen: [], indentation: 0, currentDepth: 0, circular: undefined };
    if (typeof options === 'boolean') {
      ctx.showHidden = options;
      if (legacy[0] !== undefined) ctx.depth = legacy[0];
      if (legacy[1] !== undefined) ctx.colors = legacy[1];
    } else if (options) {
      for (const key of Object.keys(options)) ctx[key] = options[key];
    }
    ctx.userOptions = options && typeof options === 'object' ? options : undefined;
    if (ctx.maxArrayLength === null) ctx.maxArrayLength = Infinity;
    if (ctx.maxStringLength === null) ctx.maxStringLength = Infinity;
    return formatValue(ctx, value, 0);
  }

  function paint(ctx, text, style) {
    const codes = ctx.colors && styles[style];
    return codes ? `\x1b[${codes[0]}m${text}\x1b[${codes[1]}m` : text;
  }

  function quote(text) {
    let mark = "'";
    if (text.includes("'")) {
      if (!text.includes('"')) mark = '"';
      else if (!text.includes('`') && !text.includes('${')) mark = '`';
    }
    const short = { '\b': '\\b', '\t': '\\t', '\n': '\\n', '\f': '\\f', '\r': '\\r', '\\': '\\\\' };
    const escaped = text.replace(/[\x00-\x1f\x7f-\x9f\\'"`]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, (c) => {
      if (c === "'" || c === '"' || c === '`') return c === mark ? '\\' + c : c;
      if (short[c]) return short[c];
      const code = c.charCodeAt(0);
      return code < 256 ? '\\x' + code.toString(16).toUpperCase().padStart(2, '0') : '\\u' + code.toString(16).toUpperCase();
    });
    return mark + escaped + mark;
  }

  function groupDigits(text) {
    return text.replace(/^(-?\d+)/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, '_'));
  }

  function formatNumber(ctx, value) {
    if (Object.is(value, -0)) return paint(ctx, '-0', 'number');
    return paint(ctx, ctx.numericSeparator ? groupDigits(String(value)) : String(value), 'number');
  }

  function formatString(ctx, value) {
    let trailer = '';
    if (value.length > ctx.maxStringLength) {
      const left = value.length - ctx.maxStringLength;
      value = value.slice(0, ctx.maxStringLength);
      trailer = `... ${left} more character${left > 1 ? 's' : ''}`;
    }
    if (ctx.compact !== true && value.length > 16 && value.length > ctx.breakLength - ctx.indentation - 4) {
      const lines = value.split(/(?<=\n)/);
      if (lines.length > 1) return lines.map((line) => paint(ctx, quote(line), 'string')).join(` +\n${' '.repeat(ctx.indentation + 2)}`) + trailer;
    }
    return paint(ctx, quote(value), 'string') + trailer;
  }

  function formatPrimitive(ctx, value) {
    switch (typeof value) {
      case 'string': return formatString(ctx, value);
      case 'number': return formatNumber(ctx, value);
      case 'bigint': return paint(ctx, `${ctx.numericSeparator ? groupDigits(String(value)) : value}n`, 'bigint');
      case 'symbol': return paint(ctx, value.toString(), 'symbol');
      default: return paint(ctx, String(value), value === null ? 'null' : typeof value);
    }
  }

  function formatValue(ctx, value, depth, typedArray) {
    if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return formatPrimitive(ctx, value);
    const proxy = binding.proxyDetails(value);
    if (proxy && ctx.showProxy) {
      if (depth > ctx.depth && ctx.depth !== null) return paint(ctx, 'Proxy [Array]', 'special');
      ctx.indentation += 2;
      const parts = proxy.map((part) => formatValue(ctx, part, depth + 1));
      ctx.indentation -= 2;
      return layout(ctx, parts, '', ['Proxy [', ']'], 'array', depth, proxy);
    }
    const context = value;
    while (binding.proxyDetails(value)) value = binding.proxyDetails(value)[0];
    if (ctx.customInspect) {
      const method = safeGet(value, custom);
      if (typeof method === 'function' && method !== inspect && !(value.constructor?.prototype === value)) {
        const left = ctx.depth === null ? null : ctx.depth - depth;
        const result = method.call(context, left, { ...ctx, ...ctx.userOptions, depth: left, stylize: (text, style) => paint(ctx, String(text), style) }, inspect);
        if (result !== context) {
          return typeof result === 'object' || typeof result === 'function'
            ? formatValue(ctx, result, depth)
            : String(result).replaceAll('\n', `\n${' '.repeat(ctx.indentation)}`);
        }
      }
    }
    if (ctx.seen.includes(value)) {
      ctx.circular ??= new Map();
      if (!ctx.circular.has(value)) ctx.circular.set(value, ctx.circular.size + 1);
      return paint(ctx, `[Circular *${ctx.circular.get(value)}]`, 'special');
    }
    return formatRaw(ctx, value, depth, typedArray);
  }

  function safeGet(object, key) {
    try { return object[key]; } catch { return undefined; }
  }

  function constructorName(object) {
    let first = object;
    while (object || typeof object === 'function') {
      const descriptor = Object.getOwnPropertyDescriptor(object, 'constructor');
      if (descriptor !== undefined && typeof descriptor.value === 'function' && descriptor.value.name !== '' && isInstance(first, descriptor.value)) return String(descriptor.value.name);
      object = Object.getPrototypeOf(object);
    }
    return null;
  }

  function isInstance(object, constructor) {
    try { return object instanceof constructor; } catch { return false; }
  }

  function prefixOf(name, tag, fallback, size = '') {
    const tagText = tag !== '' && name !== tag ? `[${tag}] ` : '';
    if (name === null) return `[${fallback}${size}: null prototype] ${tagText}`;
    return `${name}${size} ${tagText}`;
  }

  function keysOf(ctx, value) {
    const symbols = Object.getOwnPropertySymbols(value);
    if (ctx.showHidden) return [...Object.getOwnPropertyNames(value), ...symbols];
    let keys;
    try { keys = Object.keys(value); } catch { keys = Object.getOwnPropertyNames(value); }
    const visible = symbols.filter((key) => Object.prototype.propertyIsEnumerable.call(value, key));
    return visible.length ? [...keys, ...visible] : keys;
  }

  const isIndex = (key) => typeof key === 'string' && /^(0|[1-9]\d{0,9})$/.test(key) && +key < 4294967295;

  function formatRaw(ctx, value, depth, typedArray) {
    const name = constructorName(value);
    let tag = safeGet(value, Symbol.toStringTag);
    if (typeof tag !== 'string' || (tag !== '' && (ctx.showHidden ? Object.prototype.hasOwnProperty : Object.prototype.propertyIsEnumerable).call(value, Symbol.toStringTag))) tag = '';
    const kind = typeof value === 'function' ? 'Function' : binding.classOf(value);
    let base = '', formatter = () => [], braces, layoutKind = 'object', keys;
    const withoutIndexes = () => keysOf(ctx, value).filter((key) => !isIndex(key));

    switch (kind) {
      case 'Array': {
        const prefix = name !== 'Array' || tag !== '' ? prefixOf(name, tag, 'Array', `(${value.length})`) : '';
        keys = withoutIndexes();
        braces = [`${prefix}[`, ']'];
        if (value.length === 0 && keys.length === 0) return `${braces[0]}]`;
        layoutKind = 'array';
        formatter = formatArray;
        break;
      }
      case 'Set': case 'Map': {
        keys = keysOf(ctx, value);
        braces = [`${prefixOf(name, tag, kind, `(${value.size})`)}{`, '}'];
        formatter = kind === 'Set' ? formatSet : formatMap;
        if (value.size === 0 && keys.length === 0) return `${braces[0]}}`;
        break;
      }
      case 'TypedArray': {
        keys = withoutIndexes();
        const own = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag).get.call(value);
        braces = [`${prefixOf(name, tag, own, `(${value.length})`)}[`, ']'];
        if (value.length === 0 && keys.length === 0) return `${braces[0]}]`;
        layoutKind = 'array';
        formatter = formatTyped;
        break;
      }
      case 'Map Iterator': case 'Set Iterator':
        keys = keysOf(ctx, value);
        braces = [`[${tag || kind}] {`, '}'];
        break;
      case 'Arguments':
        keys = keysOf(ctx, value);
        braces = ['[Arguments] {', '}'];
        if (keys.length === 0) return '[Arguments] {}';
        break;
      case 'Function':
        keys = keysOf(ctx, value);
        base = functionBase(value, name, tag);
        braces = ['{', '}'];
        if (keys.length === 0) return paint(ctx, base, 'special');
        break;
      case 'RegExp':
        keys = keysOf(ctx, value);
        base = RegExp.prototype.toString.call(value);
        if (name !== 'RegExp' || tag) base = `${prefixOf(name, tag, 'RegExp')}${base}`;
        braces = ['{', '}'];
        if (keys.length === 0 || (depth > ctx.depth && ctx.depth !== null)) return paint(ctx, base, 'regexp');
        break;
      case 'Date':
        keys = keysOf(ctx, value);
        base = Number.isNaN(Date.prototype.getTime.call(value)) ? 'Invalid Date' : Date.prototype.toISOString.call(value);
        if (name !== 'Date' || tag) base = `${prefixOf(name, tag, 'Date')}${base}`;
        braces = ['{', '}'];
        if (keys.length === 0) return paint(ctx, base, 'date');
        break;
      case 'Error': case 'DOMException':
        keys = keysOf(ctx, value);
        base = errorBase(ctx, value, name, tag, keys);
        braces = ['{', '}'];
        if (keys.length === 0) return base;
        break;
      case 'ArrayBuffer': case 'SharedArrayBuffer':
        keys = keysOf(ctx, value);
        braces = [`${prefixOf(name, tag, kind)}{`, '}'];
        if (typedArray === undefined) formatter = formatArrayBuffer;
        else if (keys.length === 0) return `${braces[0]} byteLength: ${formatNumber(ctx, value.byteLength)} }`;
        break;
      case 'DataView':
        keys = keysOf(ctx, value);
        braces = [`${prefixOf(name, tag, 'DataView')}{`, '}'];
        formatter = (c, v, d) => ['byteLength', 'byteOffset', 'buffer'].map((key) => `${key}: ${formatValue(c, v[key], d)}`);
        break;
      case 'Promise':
        keys = keysOf(ctx, value);
        braces = [`${prefixOf(name, tag, 'Promise')}{`, '}'];
        formatter = formatPromise;
        break;
      case 'WeakSet': case 'WeakMap':
        keys = keysOf(ctx, value);
        braces = [`${prefixOf(name, tag, kind)}{`, '}'];
        formatter = () => [paint(ctx, '<items unknown>', 'special')];
        break;
      case 'WeakRef':
        keys = keysOf(ctx, value);
        braces = [`${prefixOf(name, tag, kind)}{`, '}'];
        formatter = (c, v, d) => [formatValue(c, WeakRef.prototype.deref.call(v), d)];
        break;
      case 'Module':
        keys = keysOf(ctx, value);
        braces = ['[Module: null prototype] {', '}'];
        break;
      case 'Number': case 'String': case 'Boolean': case 'BigInt': case 'Symbol': {
        const primitive = { Number, String, Boolean, BigInt, Symbol }[kind].prototype.valueOf.call(value);
        keys = kind === 'String' ? withoutIndexes() : keysOf(ctx, value);
        base = `[${kind}${name === kind ? '' : name === null ? ' (null prototype)' : ` (${name})`}: ${formatPrimitive({ ...ctx, colors: false }, primitive)}]`;
        if (tag !== '' && tag !== name) base = base.replace(/\]$/, '') + `] [${tag}]`;
        braces = ['{', '}'];
        if (keys.length === 0) return paint(ctx, base, kind === 'String' ? 'string' : kind.toLowerCase());
        break;
      }
      default:
        keys = keysOf(ctx, value);
        if (kind === 'Generator') braces = [`${prefixOf(name, tag, 'Generator')}{`, '}'];
        else if (name === 'Object' && tag === '') braces = ['{', '}'];
        else braces = [`${prefixOf(name, tag, 'Object')}{`, '}'];
        if (keys.length === 0) return `${braces[0]}}`;
    }

    if (depth > ctx.depth && ctx.depth !== null) {
      const label = prefixOf(name, tag, kind === 'Array' ? 'Array' : 'Object').slice(0, -1);
      return paint(ctx, `[${name === null ? label.replace(/^\[(.*)\]$/, '$1') : label}]`, 'special');
    }
    depth += 1;
    ctx.seen.push(value);
    ctx.currentDepth = depth;
    let output = formatter(ctx, value, depth, keys);
    for (const key of keys) output.push(formatProperty(ctx, value, depth, key, layoutKind));
    ctx.seen.pop();
    if (ctx.circular?.has(value)) {
      const reference = paint(ctx, `<ref *${ctx.circular.get(value)}>`, 'special');
      if (ctx.compact !== true) base = base === '' ? reference : `${reference} ${base}`;
      else braces[0] = `${reference} ${braces[0]}`;
    }
    if (ctx.sorted) {
      const order = ctx.sorted === true ? undefined : ctx.sorted;
      if (layoutKind === 'object') output = output.sort(order);
      else if (keys.length > 1) output = [...output.slice(0, -keys.length), ...output.slice(-keys.length).sort(order)];
    }
    return layout(ctx, output, base, braces, layoutKind, depth, value);
  }

  function functionBase(value, name, tag) {
    let source = '';
    try { source = Function.prototype.toString.call(value); } catch { /* a bound or native function */ }
    if (source.startsWith('class') && source.endsWith('}')) {
      const own = Object.prototype.hasOwnProperty.call(value, 'name') && value.name;
      let text = `[class ${own || '(anonymous)'}`;
      if (name !== 'Function' && name !== null) text += ` [${name}]`;
      if (tag !== '' && name !== tag) text += ` [${tag}]`;
      const parent = name !== null ? Object.getPrototypeOf(value).name : null;
      if (name === null) text += ' extends null';
      else if (parent) text += ` extends ${parent}`;
      return `${text}]`;
    }
    const type = { AsyncFunction: 'AsyncFunction', GeneratorFunction: 'GeneratorFunction', AsyncGeneratorFunction: 'AsyncGeneratorFunction' }[tag] ?? 'Function';
    let text = `[${type}`;
    if (name === null) text += ' (null prototype)';
    text += value.name === '' || typeof value.name !== 'string' ? ' (anonymous)' : `: ${value.name}`;
    text += ']';
    if (name !== type && name !== null && name !== 'Function') text += ` ${name}`;
    if (tag !== '' && name !== tag && tag !== type) text += ` [${tag}]`;
    return text;
  }

  function errorBase(ctx, error, name, tag, keys) {
    let stack = safeGet(error, 'stack');
    stack = typeof stack === 'string' && stack ? stack : internal('errors').headerOf(error);
    for (const key of ['name', 'message', 'stack']) {
      const at = keys.indexOf(key);
      if (at !== -1 && typeof error[key] === 'string' && stack.includes(error[key])) keys.splice(at, 1);
    }
    for (const key of ['cause', 'errors']) {
      if (Object.prototype.hasOwnProperty.call(error, key) && !keys.includes(key)) keys.push(key);
    }
    const own = error.name != null ? String(error.name) : 'Error';
    // A subclass that did not set its name is still shown by it.
    if (own.endsWith('Error') && stack.startsWith(own) && [undefined, ':', '\n', ' '].includes(stack[own.length])) {
      if (name === null) stack = `[${own}: null prototype]${stack.slice(own.length)}`;
      else if (name !== own) stack = `${name}${name.includes(own) ? '' : ` [${own}]`}${stack.slice(own.length)}`;
    }
    const at = stack.indexOf('\n    at');
    if (at === -1) stack = `[${stack}]`;
    if (ctx.indentation !== 0) stack = stack.replaceAll('\n', `\n${' '.repeat(ctx.indentation)}`);
    return stack;
  }

  function moreItems(output, left) {
    if (left > 0) output.push(`... ${left} more item${left > 1 ? 's' : ''}`);
    return output;
  }

  function formatArray(ctx, value, depth) {
    const output = [], limit = Math.min(Math.max(0, ctx.maxArrayLength), value.length);
    let i = 0;
    for (; i < value.length && output.length < limit; i++) {
      if (Object.prototype.hasOwnProperty.call(value, i)) {
        output.push(formatProperty(ctx, value, depth, i, 'element'));
        continue;
      }
      let end = i + 1;
      while (end < value.length && !Object.prototype.hasOwnProperty.call(value, end)) end++;
      output.push(paint(ctx, `<${end - i} empty item${end - i > 1 ? 's' : ''}>`, 'undefined'));
      i = end - 1;
    }
    return moreItems(output, value.length - i);
  }

  function formatTyped(ctx, value, depth) {
    const limit = Math.min(Math.max(0, ctx.maxArrayLength), value.length);
    const output = [];
    for (let i = 0; i < limit; i++) output.push(formatPrimitive(ctx, value[i]));
    moreItems(output, value.length - limit);
    if (ctx.showHidden) {
      ctx.indentation += 2;
      for (const key of ['BYTES_PER_ELEMENT', 'length', 'byteLength', 'byteOffset', 'buffer']) output.push(`[${key}]: ${formatValue(ctx, value[key], depth, true)}`);
      ctx.indentation -= 2;
    }
    return output;
  }

  function formatArrayBuffer(ctx, value) {
    const bytes = new Uint8Array(value), limit = Math.min(Math.max(0, ctx.maxArrayLength), bytes.length);
    let text = Array.from(bytes.subarray(0, limit), (byte) => byte.toString(16).padStart(2, '0')).join(' ');
    if (bytes.length > limit) text += ` ... ${bytes.length - limit} more byte${bytes.length - limit > 1 ? 's' : ''}`;
    return [`${paint(ctx, '[Uint8Contents]', 'special')}: <${text}>`, `byteLength: ${formatNumber(ctx, value.byteLength)}`];
  }

  function formatSet(ctx, value, depth) {
    const limit = Math.min(Math.max(0, ctx.maxArrayLength), value.size), output = [];
    ctx.indentation += 2;
    for (const item of Set.prototype.values.call(value)) {
      if (output.length >= limit) break;
      output.push(formatValue(ctx, item, depth));
    }
    ctx.indentation -= 2;
    return moreItems(output, value.size - limit);
  }

  function formatMap(ctx, value, depth) {
    const limit = Math.min(Math.max(0, ctx.maxArrayLength), value.size), output = [];
    ctx.indentation += 2;
    for (const [key, item] of Map.prototype.entries.call(value)) {
      if (output.length >= limit) break;
      output.push(`${formatValue(ctx, key, depth)} => ${formatValue(ctx, item, depth)}`);
    }
    ctx.indentation -= 2;
    return moreItems(output, value.size - limit);
  }

  function formatPromise(ctx, value, depth) {
    const [state, result] = binding.promiseDetails(value);
    if (state === 0) return [paint(ctx, '<pending>', 'special')];
    ctx.indentation += 2;
    const text = formatValue(ctx, result, depth);
    ctx.indentation -= 2;
    return [state === 2 ? `${paint(ctx, '<rejected>', 'special')} ${text}` : text];
  }

  function formatProperty(ctx, value, depth, key, kind) {
    const descriptor = Object.getOwnPropertyDescriptor(value, key) ?? { value: value[key], configurable: true, enumerable: true };
    let text, gap = ' ';
    if (descriptor.value !== undefined || (!descriptor.get && !descriptor.set)) {
      const indent = ctx.compact !== true || kind !== 'object' ? 2 : 3;
      ctx.indentation += indent;
      text = formatValue(ctx, descriptor.value, depth);
      if (indent === 3 && text.length > ctx.breakLength) gap = `\n${' '.repeat(ctx.indentation)}`;
      ctx.indentation -= indent;
    } else if (descriptor.get !== undefined) {
      text = paint(ctx, descriptor.set !== undefined ? '[Getter/Setter]' : '[Getter]', 'special');
      if (ctx.getters === true || (ctx.getters === 'get' && !descriptor.set) || (ctx.getters === 'set' && descriptor.set)) {
        ctx.indentation += 2;
        try { text = `${text.slice(0, -1)}: ${formatValue(ctx, value[key], depth)}]`; } catch (error) { text = `${text.slice(0, -1)}: <Inspection threw (${error.message})>]`; }
        ctx.indentation -= 2;
      }
    } else {
      text = paint(ctx, descriptor.set !== undefined ? '[Setter]' : 'undefined', descriptor.set !== undefined ? 'special' : 'undefined');
    }
    if (kind === 'element') return text;
    let name;
    if (typeof key === 'symbol') name = paint(ctx, `[${key.toString()}]`, 'symbol');
    else if (key === '__proto__') name = "['__proto__']";
    else if (descriptor.enumerable === false) name = `[${key}]`;
    else if (isIdentifier.test(key)) name = paint(ctx, key, 'name');
    else name = paint(ctx, quote(key), 'string');
    return `${name}:${gap}${text}`;
  }

  const lengthOf = (ctx, text) => (ctx.colors ? text.replace(/\x1b\[\d+m/g, '') : text).length;

  function layout(ctx, output, base, braces, kind, depth, value) {
    if (ctx.compact !== true) {
      if (typeof ctx.compact === 'number' && ctx.compact >= 1) {
        const entries = output.length;
        if (kind === 'array' && entries > 6) output = groupElements(ctx, output, value);
        if (ctx.currentDepth - depth < ctx.compact && entries === output.length) {
          const start = output.length + ctx.indentation + braces[0].length + base.length + 10;
          if (fits(ctx, output, start, base)) {
            const joined = output.join(', ');
            if (!joined.includes('\n')) return `${base ? `${base} ` : ''}${braces[0]} ${joined} ${braces[1]}`;
          }
        }
      }
      const indentation = `\n${' '.repeat(ctx.indentation)}`;
      return `${base ? `${base} ` : ''}${braces[0]}${indentation}  ${output.join(`,${indentation}  `)}${indentation}${braces[1]}`;
    }
    if (fits(ctx, output, 0, base)) return `${braces[0]}${base ? ` ${base}` : ''} ${output.join(', ')} ${braces[1]}`;
    const indentation = `\n${' '.repeat(ctx.indentation)}`;
    const line = base === '' && braces[0].length === 1 ? ' ' : `${base ? ` ${base}` : ''}\n${indentation.slice(1)}  `;
    return `${braces[0]}${line}${output.join(`,${indentation}  `)} ${braces[1]}`;
  }

  function fits(ctx, output, start, base) {
    let total = output.length + start;
    if (total + output.length > ctx.breakLength) return false;
    for (const text of output) {
      total += lengthOf(ctx, text);
      if (total > ctx.breakLength) return false;
    }
    return base === '' || !base.includes('\n');
  }

  // More than six short elements are set in columns, about as wide as high.
  function groupElements(ctx, output, value) {
    let total = 0, longest = 0, count = output.length;
    if (ctx.maxArrayLength < count && value.length > ctx.maxArrayLength) count--; // the "more items" entry
    const gap = 2, lengths = [];
    for (let i = 0; i < count; i++) {
      const length = lengthOf(ctx, output[i]);
      lengths.push(length);
      total += length + gap;
      longest = Math.max(longest, length);
    }
    const actual = longest + gap;
    if (actual * 3 + ctx.indentation < ctx.breakLength && (total / actual > 5 || longest <= 6)) {
      const bias = Math.sqrt(actual - total / output.length);
      const biased = Math.max(actual - 3 - bias, 1);
      const chosen = Math.min(Math.round(Math.sqrt(2.5 * biased * count) / biased), Math.floor((ctx.breakLength - ctx.indentation) / actual), ctx.compact * 4, 15);
      if (chosen <= 1) return output;
      const grouped = [], widths = [];
      for (let i = 0; i < chosen; i++) {
        let width = 0;
        for (let j = i; j < count; j += chosen) width = Math.max(width, lengths[j]);
        widths.push(width + gap);
      }
      const alignRight = value !== undefined && Array.prototype.every.call(output.slice(0, count), (_, i) => typeof value[i] === 'number' || typeof value[i] === 'bigint');
      for (let i = 0; i < count; i += chosen) {
        const end = Math.min(i + chosen, count);
        let line = '';
        let j = i;
        for (; j < end - 1; j++) {
          const cell = `${output[j]}, `, padding = widths[j - i] + output[j].length - lengths[j];
          line += alignRight ? cell.padStart(padding) : cell.padEnd(padding);
        }
        line += alignRight ? output[j].padStart(widths[j - i] + output[j].length - lengths[j] - gap) : output[j];
        grouped.push(line);
      }
      if (count < output.length) grouped.push(output[count]);
      return grouped;
    }
    return output;
  }

  function formatWithOptions(options, ...args) {
    const [first] = args;
    if (typeof first !== 'string') return args.map((arg) => (typeof arg === 'string' ? arg : inspect(arg, options))).join(' ');
    if (args.length === 1) return first;
    let next = 1;
    const text = first.replace(/%[sdifjoOc%]/g, (directive) => {
      if (directive === '%%') return '%';
      if (next >= args.length) return directive;
      const value = args[next++];
      switch (directive) {
        case '%s':
          if (typeof value === 'number') return formatNumber({ ...defaults }, value);
          if (typeof value === 'bigint') return `${value}n`;
          if (typeof value !== 'object' || value === null || hasOwnToString(value)) return String(value);
          return inspect(value, { ...options, depth: 0, colors: false, compact: 3 });
        case '%d': return typeof value === 'bigint' ? `${value}n` : typeof value === 'symbol' ? 'NaN' : formatNumber({ ...defaults }, Number(value));
        case '%i': return typeof value === 'bigint' ? `${value}n` : typeof value === 'symbol' ? 'NaN' : formatNumber({ ...defaults }, parseInt(value, 10));
        case '%f': return typeof value === 'symbol' ? 'NaN' : formatNumber({ ...defaults }, parseFloat(value));
        case '%j': try { return JSON.stringify(value); } catch { return '[Circular]'; }
        case '%o': return inspect(value, { ...options, showHidden: true, showProxy: true, depth: 4 });
        case '%O': return inspect(value, options);
        default: return '';
      }
    });
    return [text, ...args.slice(next).map((arg) => (typeof arg === 'string' ? arg : inspect(arg, options)))].join(' ');
  }

  function hasOwnToString(value) {
    if (binding.classOf(value) === 'Error' || binding.classOf(value) === 'Date') return true;
    let object = value;
    while (object && !Object.prototype.hasOwnProperty.call(object, 'toString')) object = Object.getPrototypeOf(object);
    return Boolean(object) && object !== Object.prototype && object !== Array.prototype && object !== Function.prototype && !(object.constructor && object.constructor.name in globalThis && object.constructor === globalThis[object.constructor.name]);
  }

  inspect.custom = custom;
  inspect.defaultOptions = defaults;
  inspect.colors = {};
  inspect.styles = styles;
  Object.assign(exports, { inspect, formatWithOptions, format: (...args) => formatWithOptions(undefined, ...args), quote });
})

// Buffer, atob and btoa.
(function (binding, internal, module, exports) {
  'use strict';
  const { coded, invalidArgType } = internal('errors');
  const BASE64 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  const BASE64_URL = BASE64.slice(0, 62) + '-_';
  const decodeTable = new Int8Array(128).fill(-1);
  for (let i = 0; i < 64; i++) decodeTable[BASE64.charCodeAt(i)] = decodeTable[BASE64_URL.charCodeAt(i)] = i;

  function toBase64(bytes, alphabet = BASE64, isPadded = true) {
    const parts = [];
    for (let start = 0; start < bytes.length; start += 3000) {
      const end = Math.min(start + 3000, bytes.length);
      let text = '';
      for (let i = start; i < end; i += 3) {
        const value = (bytes[i] << 16) | ((bytes[i + 1] ?? 0) << 8) | (bytes[i + 2] ?? 0);
        text += alphabet[value >> 18] + alphabet[(value >> 12) & 63];
        text += i + 1 < bytes.length ? alphabet[(value >> 6) & 63] : isPadded ? '=' : '';
        text += i + 2 < bytes.length ? alphabet[value & 63] : isPadded ? '=' : '';
      }
      parts.push(text);
    }
    return parts.join('');
  }

  function fromBase64(text) {
    const out = new Uint8Array(Math.ceil((text.length * 3) / 4));
    let bits = 0, held = 0, length = 0;
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      if (code === 61) break;
      const value = code < 128 ? decodeTable[code] : -1;
      if (value < 0) continue;
      held = ((held << 6) | value) & 0xffffff;
      bits += 6;
      if (bits >= 8) { bits -= 8; out[length++] = (held >> bits) & 255; }
    }
    return out.subarray(0, length);
  }

  function fromHex(text) {
    const out = new Uint8Array(text.length >> 1);
    for (let i = 0; i < out.length; i++) {
      const pair = text.slice(i * 2, i * 2 + 2);
      if (!/^[0-9a-fA-F]{2}$/.test(pair)) return out.subarray(0, i);
      out[i] = parseInt(pair, 16);
    }
    return out;
  }

  const HEX = Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, '0'));
  function toHex(bytes) {
    let text = '';
    for (let i = 0; i < bytes.length; i++) text += HEX[bytes[i]];
    return text;
  }

  function fromUnits(text, size) {
    const out = new Uint8Array(text.length * size);
    for (let i = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i);
      out[i * size] = unit & 255;
      if (size === 2) out[i * 2 + 1] = unit >> 8;
    }
    return out;
  }

  function toUtf16(bytes) {
    let text = '';
    for (let i = 0; i + 1 < bytes.length; i += 2) text += String.fromCharCode(bytes[i] | (bytes[i + 1] << 8));
    return text;
  }

  const codecs = {
    utf8: [(text) => binding.utf8Encode(text), (bytes) => binding.utf8Decode(bytes)],
    hex: [fromHex, toHex],
    base64: [fromBase64, toBase64],
    base64url: [fromBase64, (bytes) => toBase64(bytes, BASE64_URL, false)],
    latin1: [(text) => fromUnits(text, 1), (bytes) => binding.latin1Decode(bytes)],
    ascii: [(text) => fromUnits(text, 1), (bytes) => binding.latin1Decode(bytes.map((byte) => byte & 127))],
    utf16le: [(text) => fromUnits(text, 2), toUtf16],
  };
  const aliases = { 'utf-8': 'utf8', binary: 'latin1', ucs2: 'utf16le', 'ucs-2': 'utf16le', 'utf-16le': 'utf16le' };

  function codecName(encoding) {
    if (encoding === undefined || encoding === null || encoding === '') return 'utf8';
    const name = String(encoding).toLowerCase();
    const found = aliases[name] ?? name;
    return codecs[found] ? found : undefined;
  }

  function codec(encoding) {
    const name = codecName(encoding);
    if (!name) throw coded(TypeError, 'ERR_UNKNOWN_ENCODING', `Unknown encoding: ${encoding}`);
    return codecs[name];
  }

  const wrap = (bytes) => Object.setPrototypeOf(bytes, Buffer.prototype);

  class Buffer extends Uint8Array {
    static from(value, encodingOrOffset, length) {
      if (typeof value === 'string') return wrap(new Uint8Array(codec(encodingOrOffset)[0](value)));
      if (value instanceof ArrayBuffer || (typeof SharedArrayBuffer !== 'undefined' && value instanceof SharedArrayBuffer)) return wrap(new Uint8Array(value, encodingOrOffset, length));
      if (value && typeof value === 'object') {
        if (value.type === 'Buffer' && Array.isArray(value.data)) return wrap(Uint8Array.from(value.data));
        const primitive = value.valueOf?.();
        if (primitive != null && primitive !== value && (typeof primitive === 'string' || typeof primitive === 'object')) return Buffer.from(primitive, encodingOrOffset, length);
        if (ArrayBuffer.isView(value) || typeof value.length === 'number') return wrap(Uint8Array.from(value));
      }
      throw coded(TypeError, 'ERR_INVALID_ARG_TYPE', `The first argument must be of type string or an instance of Buffer, ArrayBuffer, or Array or an Array-like Object.${invalidArgType('x', '', value).message.split('.').slice(1).join('.')}`);
    }
    static alloc(size, fill, encoding) {
      if (typeof size !== 'number') throw invalidArgType('size', 'of type number', size);
      const buffer = wrap(new Uint8Array(size));
      return fill === undefined || fill === 0 ? buffer : buffer.fill(fill, encoding);
    }
    static allocUnsafe(size) { return Buffer.alloc(size); }
    static allocUnsafeSlow(size) { return Buffer.alloc(size); }
    static isBuffer(value) { return value instanceof Buffer; }
    static isEncoding(encoding) { return typeof encoding === 'string' && codecName(encoding) !== undefined && encoding !== ''; }
    static byteLength(value, encoding) { return typeof value === 'string' ? codec(encoding)[0](value).length : value.byteLength; }
    static concat(list, length) {
      const total = length ?? list.reduce((sum, part) => sum + part.length, 0);
      const out = Buffer.alloc(total);
      let at = 0;
      for (const part of list) {
        if (at >= total) break;
        out.set(at + part.length > total ? part.subarray(0, total - at) : part, at);
        at += part.length;
      }
      return out;
    }
    static compare(a, b) {
      const shared = Math.min(a.length, b.length);
      for (let i = 0; i < shared; i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
      return Math.sign(a.length - b.length);
    }
    toString(encoding, start = 0, end = this.length) {
      const bytes = start > 0 || end < this.length ? this.subarray(Math.max(0, start), Math.max(0, end)) : this;
      return codec(encoding)[1](bytes);
    }
    toLocaleString(encoding, start, end) { return this.toString(encoding, start, end); }
    toJSON() { return { type: 'Buffer', data: Array.from(this) }; }
    equals(other) { return Buffer.compare(this, other) === 0; }
    compare(other, start = 0, end = other.length, ownStart = 0, ownEnd = this.length) { return Buffer.compare(this.subarray(ownStart, ownEnd), other.subarray(start, end)); }
    write(text, offset = 0, length, encoding) {
      if (typeof offset === 'string') [offset, encoding] = [0, offset];
      else if (typeof length === 'string') [length, encoding] = [undefined, length];
      const bytes = codec(encoding)[0](text).subarray(0, Math.min(length ?? Infinity, this.length - offset));
      this.set(bytes, offset);
      return bytes.length;
    }
    copy(target, targetStart = 0, start = 0, end = this.length) {
      const part = this.subarray(start, Math.min(end, start + target.length - targetStart));
      target.set(part, targetStart);
      return part.length;
    }
    slice(start, end) { return this.subarray(start, end); }
    subarray(start, end) { return wrap(new Uint8Array(this.buffer, ...subRange(this, start, end))); }
    fill(value, start, end, encoding) {
      if (typeof start === 'string') [start, encoding] = [undefined, start];
      if (typeof end === 'string') [end, encoding] = [undefined, end];
      if (typeof value === 'number') return super.fill(value & 255, start, end);
      const pattern = typeof value === 'string' ? codec(encoding)[0](value) : value;
      if (!pattern.length) return super.fill(0, start, end);
      for (let i = start ?? 0, j = 0; i < (end ?? this.length); i++, j++) this[i] = pattern[j % pattern.length];
      return this;
    }
    indexOf(value, offset, encoding) { return find(this, value, offset, encoding, 1); }
    lastIndexOf(value, offset, encoding) { return find(this, value, offset, encoding, -1); }
    includes(value, offset, encoding) { return this.indexOf(value, offset, encoding) !== -1; }
    swap16() { for (let i = 0; i + 1 < this.length; i += 2) [this[i], this[i + 1]] = [this[i + 1], this[i]]; return this; }
    swap32() { for (let i = 0; i + 3 < this.length; i += 4) this.subarray(i, i + 4).reverse(); return this; }
    readUIntBE(offset, size) { let value = 0; for (let i = 0; i < size; i++) value = value * 256 + this[offset + i]; return value; }
    readUIntLE(offset, size) { let value = 0; for (let i = size - 1; i >= 0; i--) value = value * 256 + this[offset + i]; return value; }
    readIntBE(offset, size) { const value = this.readUIntBE(offset, size), top = 2 ** (8 * size - 1); return value >= top ? value - 2 * top : value; }
    readIntLE(offset, size) { const value = this.readUIntLE(offset, size), top = 2 ** (8 * size - 1); return value >= top ? value - 2 * top : value; }
    writeUIntBE(value, offset, size) { for (let i = size - 1; i >= 0; i--) { this[offset + i] = value % 256; value = Math.floor(value / 256); } return offset + size; }
    writeUIntLE(value, offset, size) { for (let i = 0; i < size; i++) { this[offset + i] = value % 256; value = Math.floor(value / 256); } return offset + size; }
    writeIntBE(value, offset, size) { return this.writeUIntBE(value < 0 ? value + 2 ** (8 * size) : value, offset, size); }
    writeIntLE(value, offset, size) { return this.writeUIntLE(value < 0 ? value + 2 ** (8 * size) : value, offset, size); }
    [Symbol.for('nodejs.util.inspect.custom')](depth, options) {
      const shown = Array.prototype.map.call(this.subarray(0, 50), (byte) => HEX[byte]).join(' ');
      const left = this.length - 50;
      return `<${this.constructor.name}${shown ? ' ' + shown : ''}${left > 0 ? ` ... ${left} more byte${left > 1 ? 's' : ''}` : ''}>`;
    }
  }

  function subRange(buffer, start = 0, end = buffer.length) {
    const clamp = (value) => { value = Math.trunc(+value) || 0; return value < 0 ? Math.max(0, buffer.length + value) : Math.min(value, buffer.length); };
    const from = clamp(start), to = clamp(end);
    return [buffer.byteOffset + from, Math.max(0, to - from)];
  }

  function find(buffer, value, offset, encoding, step) {
    if (typeof offset === 'string') [offset, encoding] = [undefined, offset];
    const wanted = typeof value === 'number' ? [value & 255] : typeof value === 'string' ? codec(encoding)[0](value) : value;
    const last = buffer.length - wanted.length;
    let at = offset === undefined ? (step > 0 ? 0 : last) : offset < 0 ? buffer.length + offset : offset;
    at = step > 0 ? Math.max(0, at) : Math.min(last, at);
    for (; at >= 0 && at <= last; at += step) {
      let i = 0;
      while (i < wanted.length && buffer[at + i] === wanted[i]) i++;
      if (i === wanted.length) return at;
    }
    return -1;
  }

  function outOfRange(offset, limit) {
    return coded(RangeError, 'ERR_OUT_OF_RANGE', `The value of "offset" is out of range. It must be >= 0 and <= ${limit}. Received ${offset}`);
  }

  // readInt32LE and its many siblings
  const views = { UInt8: 1, Int8: 1, UInt16: 2, Int16: 2, UInt32: 4, Int32: 4, Float: 4, Double: 8, BigInt64: 8, BigUInt64: 8 };
  for (const [name, size] of Object.entries(views)) {
    const method = { UInt8: 'Uint8', UInt16: 'Uint16', UInt32: 'Uint32', Float: 'Float32', Double: 'Float64', BigUInt64: 'BigUint64' }[name] ?? name;
    for (const order of size === 1 ? [''] : ['LE', 'BE']) {
      const view = (buffer, offset) => {
        if (!(offset >= 0 && offset + size <= buffer.length)) throw outOfRange(offset, buffer.length - size);
        return new DataView(buffer.buffer, buffer.byteOffset);
      };
      const read = function (offset = 0) { return view(this, offset)['get' + method](offset, order === 'LE'); };
      const write = function (value, offset = 0) { view(this, offset)['set' + method](offset, value, order === 'LE'); return offset + size; };
      for (const alias of new Set([name, name.replace('UInt', 'Uint')])) {
        Object.defineProperty(Buffer.prototype, `read${alias}${order}`, { value: read, writable: true, configurable: true });
        Object.defineProperty(Buffer.prototype, `write${alias}${order}`, { value: write, writable: true, configurable: true });
      }
    }
  }
  Buffer.poolSize = 8192;

  const invalidCharacter = (text) => new (internal('web').DOMException)(text, 'InvalidCharacterError');
  function btoa(text) {
    text = String(text);
    if (/[^\x00-\xff]/.test(text)) throw invalidCharacter('Invalid character');
    return toBase64(fromUnits(text, 1));
  }
  function atob(text) {
    text = String(text).replace(/[\t\n\f\r ]/g, '').replace(/(?<=^(?:.{4})*..(?:.|(?=..$)))={1,2}$/, (pad, at) => ((at + pad.length) % 4 === 0 ? '' : pad));
    if (text.length % 4 === 1 || /[^A-Za-z0-9+/]/.test(text)) throw invalidCharacter('The string to be decoded is not correctly encoded.');
    return binding.latin1Decode(fromBase64(text));
  }

  Object.assign(exports, { Buffer, atob, btoa, constants: { MAX_LENGTH: 2 ** 31 - 1, MAX_STRING_LENGTH: 2 ** 29 }, kMaxLength: 2 ** 31 - 1, INSPECT_MAX_BYTES: 50 });
})

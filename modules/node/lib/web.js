// Web globals: TextEncoder, TextDecoder, DOMException, AbortController, Event, EventTarget, structuredClone.
(function (binding, internal, module, exports) {
  'use strict';

  class TextEncoder {
    get encoding() { return 'utf-8'; }
    encode(text = '') { return binding.utf8Encode(String(text)); }
    encodeInto(text, target) {
      let read = 0, written = 0;
      for (const character of String(text)) {
        const bytes = binding.utf8Encode(character);
        if (written + bytes.length > target.length) break;
        target.set(bytes, written);
        written += bytes.length;
        read += character.length;
      }
      return { read, written };
    }
  }

  class TextDecoder {
    #label; #isFatal; #ignoresBom; #held = new Uint8Array(0); #hasStarted = false;
    constructor(label = 'utf-8', options = {}) {
      const name = String(label).trim().toLowerCase();
      const known = { 'utf-8': 'utf-8', utf8: 'utf-8', 'utf-16le': 'utf-16le', 'utf-16': 'utf-16le', utf16le: 'utf-16le', latin1: 'windows-1252', 'iso-8859-1': 'windows-1252', ascii: 'windows-1252', 'us-ascii': 'windows-1252', 'windows-1252': 'windows-1252' };
      if (!known[name]) throw internal('errors').coded(RangeError, 'ERR_ENCODING_NOT_SUPPORTED', `The "${label}" encoding is not supported`);
      this.#label = known[name];
      this.#isFatal = Boolean(options.fatal);
      this.#ignoresBom = Boolean(options.ignoreBOM);
    }
    get encoding() { return this.#label; }
    get fatal() { return this.#isFatal; }
    get ignoreBOM() { return this.#ignoresBom; }
    decode(input = new Uint8Array(0), { stream = false } = {}) {
      let bytes = ArrayBuffer.isView(input) ? new Uint8Array(input.buffer, input.byteOffset, input.byteLength) : new Uint8Array(input);
      if (this.#held.length) { const joined = new Uint8Array(this.#held.length + bytes.length); joined.set(this.#held); joined.set(bytes, this.#held.length); bytes = joined; }
      this.#held = new Uint8Array(0);
      if (stream) {
        const keep = this.#label === 'utf-8' ? unfinished(bytes) : this.#label === 'utf-16le' ? bytes.length % 2 : 0;
        if (keep) { this.#held = bytes.slice(bytes.length - keep); bytes = bytes.subarray(0, bytes.length - keep); }
      }
      let text;
      if (this.#label === 'utf-8') {
        text = binding.utf8Decode(bytes);
        if (this.#isFatal && text.includes('\ufffd') && !sameBytes(binding.utf8Encode(text), bytes)) throw internal('errors').coded(TypeError, 'ERR_ENCODING_INVALID_ENCODED_DATA', 'The encoded data was not valid for encoding utf-8');
      } else {
        text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString(this.#label === 'utf-16le' ? 'utf16le' : 'latin1');
      }
      if (!this.#hasStarted && !this.#ignoresBom && text[0] === '\ufeff') text = text.slice(1);
      this.#hasStarted = stream && (this.#hasStarted || text !== '');
      return text;
    }
  }

  const sameBytes = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

  // How many bytes at the end belong to a UTF-8 sequence that is still to be continued
  function unfinished(bytes) {
    for (let back = 1; back <= Math.min(3, bytes.length); back++) {
      const byte = bytes[bytes.length - back];
      if (byte < 0x80) return 0;
      if (byte >= 0xc0) return (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2) > back ? back : 0;
    }
    return 0;
  }

  const domCodes = { InvalidCharacterError: 5, NotFoundError: 8, InvalidStateError: 11, SyntaxError: 12, AbortError: 20, TimeoutError: 23, DataCloneError: 25 };
  class DOMException extends Error {
    #name;
    constructor(message = '', name = 'Error') { super(message); this.#name = typeof name === 'object' ? name.name ?? 'Error' : String(name); if (name?.cause !== undefined) this.cause = name.cause; }
    get name() { return this.#name ?? 'Error'; }
    get code() { return domCodes[this.#name] ?? 0; }
  }

  class Event {
    constructor(type, init = {}) { Object.assign(this, { type, cancelable: Boolean(init.cancelable), bubbles: Boolean(init.bubbles), defaultPrevented: false, target: null, timeStamp: performance.now() }); }
    preventDefault() { if (this.cancelable) this.defaultPrevented = true; }
    stopPropagation() {}
    stopImmediatePropagation() { this.isStopped = true; }
  }
  class CustomEvent extends Event { constructor(type, init = {}) { super(type, init); this.detail = init.detail ?? null; } }

  class EventTarget {
    #listeners = new Map();
    addEventListener(type, listener, options) {
      if (!listener) return;
      const list = this.#listeners.get(type) ?? [];
      if (!list.some((entry) => entry.listener === listener)) this.#listeners.set(type, [...list, { listener, isOnce: Boolean(options?.once) }]);
    }
    removeEventListener(type, listener) { this.#listeners.set(type, (this.#listeners.get(type) ?? []).filter((entry) => entry.listener !== listener)); }
    dispatchEvent(event) {
      event.target = event.currentTarget = this;
      for (const { listener, isOnce } of this.#listeners.get(event.type) ?? []) {
        if (isOnce) this.removeEventListener(event.type, listener);
        if (typeof listener === 'function') listener.call(this, event); else listener.handleEvent(event);
        if (event.isStopped) break;
      }
      return !event.defaultPrevented;
    }
  }

  class AbortSignal extends EventTarget {
    aborted = false; reason = undefined; onabort = null;
    throwIfAborted() { if (this.aborted) throw this.reason; }
    static abort(reason) { const signal = new AbortSignal(); trigger(signal, reason); return signal; }
    static timeout(delay) {
      const signal = new AbortSignal();
      setTimeout(() => trigger(signal, new DOMException('The operation was aborted due to timeout', 'TimeoutError')), delay).unref();
      return signal;
    }
    static any(signals) {
      const result = new AbortSignal();
      for (const signal of signals) if (signal.aborted) trigger(result, signal.reason); else signal.addEventListener('abort', () => trigger(result, signal.reason));
      return result;
    }
  }
  function trigger(signal, reason = new DOMException('This operation was aborted', 'AbortError')) {
    if (signal.aborted) return;
    signal.aborted = true;
    signal.reason = reason;
    const event = new Event('abort');
    signal.onabort?.(event);
    signal.dispatchEvent(event);
  }
  class AbortController {
    signal = new AbortSignal();
    abort(reason) { trigger(this.signal, reason); }
  }

  function structuredClone(value) { return clone(value, new Map()); }

  function clone(value, seen) {
    if (typeof value === 'symbol' || typeof value === 'function') throw new DOMException(`${typeof value === 'symbol' ? String(value) : Function.prototype.toString.call(value)} could not be cloned.`, 'DataCloneError');
    if (value === null || typeof value !== 'object') return value;
    if (seen.has(value)) return seen.get(value);
    const kind = binding.classOf(value);
    const keep = (copy) => { seen.set(value, copy); return copy; };
    switch (kind) {
      case 'Date': return keep(new Date(value.getTime()));
      case 'RegExp': return keep(new RegExp(value.source, value.flags));
      case 'Number': case 'String': case 'Boolean': case 'BigInt': return keep(Object(value.valueOf()));
      case 'ArrayBuffer': return keep(value.slice(0));
      case 'TypedArray': { const buffer = clone(value.buffer, seen); const Type = globalThis[Object.getPrototypeOf(Uint8Array.prototype).__lookupGetter__(Symbol.toStringTag).call(value)]; return keep(new Type(buffer, value.byteOffset, value.length)); }
      case 'DataView': return keep(new DataView(clone(value.buffer, seen), value.byteOffset, value.byteLength));
      case 'Map': { const copy = keep(new Map()); for (const [key, item] of value) copy.set(clone(key, seen), clone(item, seen)); return copy; }
      case 'Set': { const copy = keep(new Set()); for (const item of value) copy.add(clone(item, seen)); return copy; }
      case 'Error': {
        const Type = { EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError }[value.name] ?? Error;
        const copy = keep(new Type(value.message));
        copy.stack = value.stack;
        if (Object.hasOwn(value, 'cause')) Object.defineProperty(copy, 'cause', { value: clone(value.cause, seen), writable: true, configurable: true });
        return copy;
      }
      case 'Promise': case 'WeakMap': case 'WeakSet': case 'WeakRef': case 'Generator': throw new DOMException(`#<${kind}> could not be cloned.`, 'DataCloneError');
      default: {
        const copy = keep(kind === 'Array' ? new Array(value.length) : {});
        for (const key of Object.keys(value)) copy[key] = clone(value[key], seen);
        return copy;
      }
    }
  }

  Object.assign(exports, { TextEncoder, TextDecoder, DOMException, Event, CustomEvent, EventTarget, AbortSignal, AbortController, structuredClone });
})

// node:crypto: hashes, HMAC, random values. No ciphers and no keys.
(function (binding, internal, module, exports) {
  'use strict';
  const { coded, invalidArgType } = internal('errors');
  const names = ['md5', 'sha1', 'sha224', 'sha256', 'sha384', 'sha512'];

  function toBytes(data, encoding) {
    if (typeof data === 'string') return Buffer.from(data, encoding);
    if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    throw invalidArgType('data', 'of type string or an instance of Buffer, TypedArray, or DataView', data);
  }
  function algorithm(name) {
    const found = String(name).toLowerCase().replace(/^rsa-/, '').replace(/^sha-/, 'sha');
    if (!names.includes(found)) throw coded(Error, 'ERR_OSSL_EVP_UNSUPPORTED', `Digest method not supported: ${name}`);
    return found;
  }
  const output = (bytes, encoding) => { const buffer = Buffer.from(bytes); return encoding && encoding !== 'buffer' ? buffer.toString(encoding) : buffer; };

  class Hash {
    #name; #parts; #isDone = false;
    constructor(name, parts = []) { this.#name = algorithm(name); this.#parts = parts; }
    update(data, encoding) {
      if (this.#isDone) throw coded(Error, 'ERR_CRYPTO_HASH_FINALIZED', 'Digest already called');
      this.#parts.push(Buffer.from(toBytes(data, encoding)));
      return this;
    }
    digest(encoding) {
      if (this.#isDone) throw coded(Error, 'ERR_CRYPTO_HASH_FINALIZED', 'Digest already called');
      this.#isDone = true;
      return output(binding.digest(this.#name, Buffer.concat(this.#parts)), encoding);
    }
    copy() { return new Hash(this.#name, [...this.#parts]); }
    write(data, encoding) { this.update(data, encoding); return true; }
    end(data) { if (data) this.update(data); return this; }
    read() { return this.digest(); }
  }

  function hmac(name, key, data) {
    const block = /^sha(384|512)$/.test(name) ? 128 : 64;
    const padded = Buffer.alloc(block);
    padded.set(key.length > block ? binding.digest(name, key) : key);
    const inner = binding.digest(name, Buffer.concat([padded.map((byte) => byte ^ 0x36), data]));
    return binding.digest(name, Buffer.concat([padded.map((byte) => byte ^ 0x5c), inner]));
  }
  class Hmac {
    #name; #key; #parts = [];
    constructor(name, key) { this.#name = algorithm(name); this.#key = toBytes(key); }
    update(data, encoding) { this.#parts.push(Buffer.from(toBytes(data, encoding))); return this; }
    digest(encoding) { return output(hmac(this.#name, this.#key, Buffer.concat(this.#parts)), encoding); }
  }

  function pbkdf2Sync(password, salt, iterations, length, name) {
    const digest = algorithm(name), key = toBytes(password), blocks = [];
    for (let index = 1; blocks.length * (blocks[0]?.length ?? 1) < length || !blocks.length; index++) {
      const counter = Buffer.alloc(4);
      counter.writeUInt32BE(index);
      let last = hmac(digest, key, Buffer.concat([toBytes(salt), counter]));
      const sum = Buffer.from(last);
      for (let i = 1; i < iterations; i++) { last = hmac(digest, key, Buffer.from(last)); for (let j = 0; j < sum.length; j++) sum[j] ^= last[j]; }
      blocks.push(sum);
    }
    return Buffer.concat(blocks).subarray(0, length);
  }

  function randomBytes(size, callback) {
    const bytes = Buffer.alloc(size);
    binding.randomFill(bytes);
    if (!callback) return bytes;
    internal('timers').later(() => callback(null, bytes));
  }
  function randomInt(min, max) {
    if (max === undefined) [min, max] = [0, min];
    const range = max - min;
    if (!(range > 0)) throw coded(RangeError, 'ERR_OUT_OF_RANGE', `The value of "max" is out of range. It must be greater than the value of "min" (${min}). Received ${max}`);
    const limit = 2 ** 48 - (2 ** 48 % range);
    for (;;) { const value = randomBytes(6).readUIntBE(0, 6); if (value < limit) return min + (value % range); }
  }
  function randomUUID() {
    const bytes = randomBytes(16);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
  }
  function timingSafeEqual(a, b) {
    if (a.byteLength !== b.byteLength) throw coded(RangeError, 'ERR_CRYPTO_TIMING_SAFE_EQUAL_LENGTH', 'Input buffers must have the same byte length');
    const left = toBytes(a), right = toBytes(b);
    let difference = 0;
    for (let i = 0; i < left.length; i++) difference |= left[i] ^ right[i];
    return difference === 0;
  }
  function getRandomValues(array) {
    binding.randomFill(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    return array;
  }

  const subtle = { digest: async (name, data) => { const bytes = Uint8Array.from(binding.digest(algorithm(name.name ?? name), new Uint8Array(ArrayBuffer.isView(data) ? toBytes(data) : data))); return bytes.buffer; } };
  const webcrypto = { getRandomValues, randomUUID, subtle };
  Object.assign(exports, {
    createHash: (name) => new Hash(name), createHmac: (name, key) => new Hmac(name, key), Hash, Hmac, randomBytes, randomInt, randomUUID, timingSafeEqual, getRandomValues, pbkdf2Sync, webcrypto, subtle,
    hash: (name, data, encoding = 'hex') => new Hash(name).update(data).digest(encoding), getHashes: () => [...names], randomFillSync: (array) => getRandomValues(array),
  });
})

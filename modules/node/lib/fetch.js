// fetch, Headers, Request, Response over the host's fetch call. The host decides what may be reached.
(function (binding, internal, module, exports) {
  'use strict';
  const { codeInHeader } = internal('errors');

  class Headers {
    #map = new Map();
    constructor(init) {
      if (!init) return;
      const entries = init instanceof Headers || typeof init[Symbol.iterator] === 'function' ? init : Object.entries(init);
      for (const [name, value] of entries) this.append(name, value);
    }
    append(name, value) { const key = valid(name), old = this.#map.get(key); this.#map.set(key, old === undefined ? clean(value) : `${old}, ${clean(value)}`); }
    set(name, value) { this.#map.set(valid(name), clean(value)); }
    get(name) { return this.#map.get(String(name).toLowerCase()) ?? null; }
    has(name) { return this.#map.has(String(name).toLowerCase()); }
    delete(name) { this.#map.delete(String(name).toLowerCase()); }
    forEach(callback, self) { for (const [name, value] of this) callback.call(self, value, name, this); }
    *entries() { for (const key of [...this.#map.keys()].sort()) yield [key, this.#map.get(key)]; }
    *keys() { for (const [key] of this.entries()) yield key; }
    *values() { for (const [, value] of this.entries()) yield value; }
    getSetCookie() { return this.has('set-cookie') ? this.get('set-cookie').split(', ') : []; }
    [Symbol.iterator]() { return this.entries(); }
    [Symbol.for('nodejs.util.inspect.custom')](depth, options, inspect) { return `Headers ${inspect(Object.fromEntries(this), options)}`; }
  }
  const clean = (value) => String(value).trim();
  function valid(name) {
    if (!/^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/.test(String(name))) throw new TypeError(`Headers.append: ${name} is an invalid header name.`);
    return String(name).toLowerCase();
  }

  function bodyBytes(body, headers) {
    if (body === undefined || body === null) return null;
    const typed = (type, bytes) => { if (!headers.has('content-type')) headers.set('content-type', type); return bytes; };
    if (body instanceof internal('url').URLSearchParams) return typed('application/x-www-form-urlencoded;charset=UTF-8', binding.utf8Encode(body.toString()));
    if (body instanceof ArrayBuffer) return new Uint8Array(body);
    if (ArrayBuffer.isView(body)) return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
    return typed('text/plain;charset=UTF-8', binding.utf8Encode(String(body)));
  }

  class Body {
    #bytes; #isUsed = false;
    constructor(bytes) { this.#bytes = bytes; }
    get bodyUsed() { return this.#isUsed; }
    get body() { return this.#bytes === null ? null : { [Symbol.asyncIterator]: async function* () { yield await this.bytes(); }.bind(this), getReader: () => { let isDone = false; return { read: async () => (isDone ? { done: true, value: undefined } : ((isDone = true), { done: false, value: await this.bytes() })), releaseLock() {} }; } }; }
    async bytes() {
      if (this.#isUsed) throw new TypeError('Body is unusable: Body has already been read');
      this.#isUsed = true;
      return this.#bytes ?? new Uint8Array(0);
    }
    async arrayBuffer() { return Uint8Array.from(await this.bytes()).buffer; }
    async text() { return new TextDecoder().decode(await this.bytes()); }
    async json() { return JSON.parse(await this.text()); }
    async blob() { const bytes = await this.bytes(); return { size: bytes.length, type: this.headers.get('content-type') ?? '', arrayBuffer: async () => Uint8Array.from(bytes).buffer, text: async () => binding.utf8Decode(bytes) }; }
    copyBytes() { if (this.#isUsed) throw new TypeError('Response.clone: Body has already been consumed.'); return this.#bytes; }
  }

  class Request extends Body {
    constructor(input, init = {}) {
      const from = input instanceof Request ? input : null;
      const headers = new Headers(init.headers ?? from?.headers);
      const method = String(init.method ?? from?.method ?? 'GET');
      const bytes = bodyBytes(init.body, headers) ?? (from ? from.copyBytes() : null);
      const normal = /^(get|head|post|put|delete|options)$/i.test(method) ? method.toUpperCase() : method;
      if (bytes && (normal === 'GET' || normal === 'HEAD')) throw new TypeError('Request with GET/HEAD method cannot have body.');
      super(bytes);
      let url;
      try { url = new (internal('url').URL)(from ? from.url : String(input)); } catch (cause) { throw new TypeError(`Failed to parse URL from ${input}`, { cause }); }
      Object.assign(this, { url: url.href, method: normal, headers, redirect: init.redirect ?? from?.redirect ?? 'follow', signal: init.signal ?? from?.signal ?? null });
    }
    clone() { return new Request(this); }
  }

  const phrases = { 200: 'OK', 201: 'Created', 202: 'Accepted', 204: 'No Content', 206: 'Partial Content', 301: 'Moved Permanently', 302: 'Found', 303: 'See Other', 304: 'Not Modified', 307: 'Temporary Redirect', 308: 'Permanent Redirect', 400: 'Bad Request', 401: 'Unauthorized', 403: 'Forbidden', 404: 'Not Found', 405: 'Method Not Allowed', 409: 'Conflict', 410: 'Gone', 418: "I'm a Teapot", 422: 'Unprocessable Entity', 429: 'Too Many Requests', 500: 'Internal Server Error', 501: 'Not Implemented', 502: 'Bad Gateway', 503: 'Service Unavailable', 504: 'Gateway Timeout' };
  class Response extends Body {
    constructor(body, init = {}) {
      const headers = new Headers(init.headers);
      super(bodyBytes(body, headers));
      const status = init.status ?? 200;
      Object.assign(this, { status, statusText: init.statusText ?? '', headers, url: init.url ?? '', redirected: Boolean(init.redirected), type: init.url ? 'basic' : 'default', ok: status >= 200 && status <= 299 });
    }
    clone() { return new Response(this.copyBytes(), this); }
    static json(value, init = {}) { const headers = new Headers(init.headers); if (!headers.has('content-type')) headers.set('content-type', 'application/json'); return new Response(JSON.stringify(value), { ...init, headers }); }
    static error() { return new Response(null, { status: 0 }); }
  }

  function failure(details, fallback) {
    const message = details?.message ?? fallback;
    const cause = new Error(message);
    if (details?.code) cause.code = details.code;
    return new TypeError(`fetch failed: ${message}`, { cause });
  }

  function send(request) {
    const wire = { url: request.url, method: request.method, headers: Object.fromEntries(request.headers), body: Buffer.from(request.copyBytes() ?? []).toString('base64'), follow_redirects: request.redirect === 'follow' };
    const [code, text] = binding.fetch(JSON.stringify(wire));
    let answer;
    try { answer = text === undefined ? undefined : JSON.parse(text); } catch { /* reported below */ }
    if (answer?.error) throw failure(typeof answer.error === 'string' ? { message: answer.error } : answer.error);
    if (code === -2) throw failure(answer, 'networking is disabled in this sandbox');
    if (code !== 0 || !answer) throw failure(undefined, 'the host refused the request as malformed');
    if (request.redirect === 'error' && answer.status >= 300 && answer.status < 400) throw failure(undefined, 'unexpected redirect');
    const bytes = Buffer.from(answer.body ?? '', 'base64');
    const headers = new Headers();
    for (const [name, value] of Object.entries(answer.headers ?? {})) for (const item of [].concat(value)) headers.append(name, item);
    const url = answer.url ?? request.url;
    const response = new Response(null, { status: answer.status, statusText: answer.status_text ?? phrases[answer.status] ?? '', headers, url, redirected: url !== request.url });
    return Object.setPrototypeOf(Object.assign(new Received(bytes), response), Received.prototype);
  }
  // A response from the wire keeps its headers as they came; the constructor of Response would add a content type.
  class Received extends Body { clone() { return Object.assign(new Received(this.copyBytes()), this); } }
  Object.setPrototypeOf(Received.prototype, Response.prototype);
  Object.defineProperty(Received, 'name', { value: 'Response' });
  for (const name of ['bodyUsed', 'body']) Object.defineProperty(Received.prototype, name, Object.getOwnPropertyDescriptor(Body.prototype, name));

  function fetch(input, init) {
    return new Promise((resolve, reject) => {
      const request = new Request(input, init);
      internal('timers').later(() => {
        try {
          request.signal?.throwIfAborted();
          resolve(send(request));
        } catch (error) { reject(error); }
      });
    });
  }

  Object.assign(exports, { fetch, Headers, Request, Response });
})

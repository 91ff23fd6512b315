// URL, URLSearchParams and node:url. Host names are taken as they are, lower-cased; no IDNA.
(function (binding, internal, module, exports) {
  'use strict';
  const { coded } = internal('errors');
  const ports = { 'http:': '80', 'https:': '443', 'ftp:': '21', 'ws:': '80', 'wss:': '443', 'file:': '' };
  const isSpecial = (protocol) => Object.hasOwn(ports, protocol);

  const encode = (text, unsafe) => Array.from(text, (character) => (unsafe.test(character) || character > '~' ? Array.from(binding.utf8Encode(character), (byte) => '%' + byte.toString(16).toUpperCase().padStart(2, '0')).join('') : character)).join('');
  const inPath = /[\x00-\x20"#<>?`{}\x7f]/, inQuery = /[\x00-\x20"#<>'\x7f]/, inHash = /[\x00-\x20"<>`\x7f]/, inUser = /[\x00-\x20"#<>?`{}/:;=@[\\\]^|\x7f]/;

  function parts(text, base) {
    text = text.replace(/^[\x00-\x20]+|[\x00-\x20]+$/g, '').replace(/[\t\n\r]/g, '');
    const scheme = /^([a-zA-Z][a-zA-Z0-9+.-]*):/.exec(text);
    if (scheme && !(base && isSpecial(base.protocol) && scheme[1].toLowerCase() + ':' === base.protocol && !/^[/\\]/.test(text.slice(scheme[0].length)))) return absolute(scheme[1].toLowerCase() + ':', text.slice(scheme[0].length));
    if (!base) return null;
    return relative(scheme ? text.slice(scheme[0].length) : text, base);
  }

  function split(rest) {
    const hashAt = rest.indexOf('#');
    const hash = hashAt === -1 ? '' : rest.slice(hashAt);
    if (hashAt !== -1) rest = rest.slice(0, hashAt);
    const queryAt = rest.indexOf('?');
    return [queryAt === -1 ? rest : rest.slice(0, queryAt), queryAt === -1 ? '' : rest.slice(queryAt), hash];
  }

  function absolute(protocol, rest) {
    let [path, search, hash] = split(rest);
    const url = { protocol, username: '', password: '', hostname: '', port: '', pathname: '', search: query(search), hash: fragment(hash), hasHost: false };
    if (isSpecial(protocol)) path = path.replace(/\\/g, '/');
    if (isSpecial(protocol) && protocol !== 'file:') path = path.replace(/^\/*/, '//');
    if (path.startsWith('//')) {
      const end = path.indexOf('/', 2);
      const authority = end === -1 ? path.slice(2) : path.slice(2, end);
      path = end === -1 ? '' : path.slice(end);
      if (!setAuthority(url, authority)) return null;
    } else if (!isSpecial(protocol)) {
      url.pathname = path.startsWith('/') ? '/' + collapse(path) : encode(path, /[\x00-\x1f\x7f]/);
      return url;
    }
    url.pathname = isSpecial(protocol) || path ? '/' + collapse(path) : '';
    return url;
  }

  function setAuthority(url, authority) {
    url.hasHost = true;
    const at = authority.lastIndexOf('@');
    if (at !== -1) {
      const [user, ...password] = authority.slice(0, at).split(':');
      url.username = encode(user, inUser);
      url.password = encode(password.join(':'), inUser);
    }
    const host = /^(\[[0-9a-fA-F:.]+\]|[^:]*)(?::(\d*))?$/.exec(authority.slice(at + 1));
    if (!host) return false;
    url.hostname = isSpecial(url.protocol) ? hostname(host[1]) : host[1];
    if (url.hostname === null || (url.hostname === '' && isSpecial(url.protocol) && url.protocol !== 'file:')) return false;
    if (host[2] && +host[2] > 65535) return false;
    url.port = host[2] ? String(+host[2]) : '';
    if (url.port === ports[url.protocol]) url.port = '';
    return true;
  }

  function hostname(text) {
    let name = text.toLowerCase();
    try { name = decodeURIComponent(name); } catch { return null; }
    if (/[\x00-\x20#%/<>?@\\^|]/.test(name) || (name[0] !== '[' && /[[\]:]/.test(name))) return null;
    // the shorthand and hexadecimal spellings of IPv4 addresses are one address
    if (/^(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*\.?$/.test(name)) return ipv4(name.replace(/\.$/, '').split('.'));
    return name;
  }

  function ipv4(pieces) {
    if (pieces.length > 4) return null;
    const numbers = pieces.map((piece) => (/^0x/.test(piece) ? parseInt(piece.slice(2) || '0', 16) : /^0\d/.test(piece) ? parseInt(piece, 8) : +piece));
    const last = numbers.pop();
    if (numbers.some((n) => !(n <= 255)) || !(last < 256 ** (4 - numbers.length))) return null;
    const value = numbers.reduce((sum, n, i) => sum + n * 256 ** (3 - i), last);
    return [24, 16, 8, 0].map((shift) => Math.floor(value / 2 ** shift) % 256).join('.');
  }

  function collapse(path) {
    const out = [], pieces = path.replace(/^\//, '').split('/');
    pieces.forEach((piece, i) => {
      const plain = piece.replace(/%2e/gi, '.'), isLast = i === pieces.length - 1;
      if (plain === '..') { out.pop(); if (isLast) out.push(''); } else if (plain === '.') { if (isLast) out.push(''); } else out.push(encode(piece, inPath));
    });
    return out.join('/');
  }

  const query = (text) => (text.length > 1 ? '?' + encode(text.slice(1), inQuery) : '');
  const fragment = (text) => (text.length > 1 ? '#' + encode(text.slice(1), inHash) : '');

  function relative(text, base) {
    if (base.pathname !== '' && base.pathname[0] !== '/' && !text.startsWith('#')) return null;
    if (isSpecial(base.protocol)) text = text.replace(/^[^?#]*/, (path) => path.replace(/\\/g, '/'));
    if (text.startsWith('//')) return absolute(base.protocol, text);
    const [path, search, hash] = split(text);
    const url = { ...base, hash: fragment(hash) };
    if (path === '') { if (search || text.startsWith('?')) url.search = query(search); return url; }
    url.search = query(search);
    url.pathname = '/' + collapse(path[0] === '/' ? path : base.pathname.replace(/[^/]*$/, '') + path);
    return url;
  }

  class URL {
    #parts; #params;
    constructor(text, base) {
      const parsedBase = base === undefined ? undefined : base instanceof URL ? base.#parts : parts(String(base));
      this.#parts = parsedBase === null ? null : parts(String(text), parsedBase);
      if (!this.#parts) {
        const error = coded(TypeError, 'ERR_INVALID_URL', 'Invalid URL');
        error.input = String(text);
        if (base !== undefined) error.base = String(base);
        throw error;
      }
      this.#params = new URLSearchParams(this.#parts.search);
      this.#params[onChange](() => { const text = this.#params.toString(); this.#parts.search = text ? '?' + text : ''; });
    }
    static canParse(text, base) { try { new URL(text, base); return true; } catch { return false; } }
    static parse(text, base) { try { return new URL(text, base); } catch { return null; } }
    get href() {
      const p = this.#parts;
      const user = p.username || p.password ? `${p.username}${p.password ? ':' + p.password : ''}@` : '';
      return `${p.protocol}${p.hasHost || p.protocol === 'file:' ? '//' : ''}${user}${this.host}${p.pathname}${p.search}${p.hash}`;
    }
    set href(value) { const next = new URL(value); this.#parts = next.#parts; this.#params[replace](this.#parts.search); }
    get origin() { return isSpecial(this.#parts.protocol) && this.#parts.protocol !== 'file:' ? `${this.#parts.protocol}//${this.host}` : 'null'; }
    get protocol() { return this.#parts.protocol; }
    set protocol(value) { const next = String(value).replace(/:.*$/, '').toLowerCase() + ':'; if (isSpecial(next) === isSpecial(this.#parts.protocol)) { this.#parts.protocol = next; if (this.#parts.port === ports[next]) this.#parts.port = ''; } }
    get username() { return this.#parts.username; }
    set username(value) { this.#parts.username = encode(String(value), inUser); }
    get password() { return this.#parts.password; }
    set password(value) { this.#parts.password = encode(String(value), inUser); }
    get host() { return this.#parts.hostname + (this.#parts.port ? ':' + this.#parts.port : ''); }
    set host(value) { const next = { ...this.#parts }; if (setAuthority(next, String(value).replace(/[/?#].*$/, ''))) Object.assign(this.#parts, { hostname: next.hostname, port: /:\d+$/.test(value) ? next.port : this.#parts.port }); }
    get hostname() { return this.#parts.hostname; }
    set hostname(value) { const next = hostname(String(value)); if (next) this.#parts.hostname = next; }
    get port() { return this.#parts.port; }
    set port(value) { const digits = /^\d*/.exec(String(value))[0]; if (+digits <= 65535) this.#parts.port = digits === ports[this.#parts.protocol] ? '' : digits && String(+digits); }
    get pathname() { return this.#parts.pathname; }
    set pathname(value) { this.#parts.pathname = '/' + collapse(encode(String(value), /[?#]/)); }
    get search() { return this.#parts.search; }
    set search(value) { const text = String(value); this.#parts.search = query(text && text[0] !== '?' ? '?' + text : text); this.#params[replace](this.#parts.search); }
    get searchParams() { return this.#params; }
    get hash() { return this.#parts.hash; }
    set hash(value) { const text = String(value); this.#parts.hash = fragment(text && text[0] !== '#' ? '#' + text : text); }
    toString() { return this.href; }
    toJSON() { return this.href; }
    [Symbol.for('nodejs.util.inspect.custom')](depth, options, inspect) {
      const shown = {};
      for (const key of ['href', 'origin', 'protocol', 'username', 'password', 'host', 'hostname', 'port', 'pathname', 'search', 'searchParams', 'hash']) shown[key] = this[key];
      return `URL ${inspect(shown, options)}`;
    }
  }

  const onChange = Symbol('onChange'), replace = Symbol('replace');
  const formEncode = (text) => encode(text, /[^A-Za-z0-9*._ -]/).replaceAll(' ', '+');
  function formDecode(text) {
    const bytes = [];
    const encoded = binding.utf8Encode(text.replaceAll('+', ' '));
    for (let i = 0; i < encoded.length; i++) {
      const pair = encoded[i] === 37 ? String.fromCharCode(encoded[i + 1], encoded[i + 2]) : '';
      if (/^[0-9a-fA-F]{2}$/.test(pair)) { bytes.push(parseInt(pair, 16)); i += 2; } else bytes.push(encoded[i]);
    }
    return binding.utf8Decode(Uint8Array.from(bytes));
  }

  class URLSearchParams {
    #list = []; #changed = () => {};
    constructor(init = '') {
      if (typeof init === 'object' && init !== null) {
        const entries = typeof init[Symbol.iterator] === 'function' ? init : Object.entries(init);
        for (const entry of entries) {
          const [name, value, ...more] = entry;
          if (value === undefined || more.length) throw coded(TypeError, 'ERR_INVALID_TUPLE', 'Each query pair must be an iterable [name, value] tuple');
          this.#list.push([String(name), String(value)]);
        }
      } else this[replace](String(init));
    }
    [onChange](callback) { this.#changed = callback; }
    [replace](text) {
      this.#list = text.replace(/^\?/, '').split('&').filter(Boolean).map((pair) => { const at = pair.indexOf('='); return at === -1 ? [formDecode(pair), ''] : [formDecode(pair.slice(0, at)), formDecode(pair.slice(at + 1))]; });
    }
    get size() { return this.#list.length; }
    append(name, value) { this.#list.push([String(name), String(value)]); this.#changed(); }
    delete(name, value) { this.#list = this.#list.filter(([key, item]) => key !== String(name) || (value !== undefined && item !== String(value))); this.#changed(); }
    get(name) { return this.#list.find(([key]) => key === String(name))?.[1] ?? null; }
    getAll(name) { return this.#list.filter(([key]) => key === String(name)).map(([, value]) => value); }
    has(name, value) { return this.#list.some(([key, item]) => key === String(name) && (value === undefined || item === String(value))); }
    set(name, value) {
      const at = this.#list.findIndex(([key]) => key === String(name));
      if (at === -1) this.#list.push([String(name), String(value)]);
      else this.#list = this.#list.filter(([key], i) => i <= at || key !== String(name)).map((pair, i) => (i === at ? [pair[0], String(value)] : pair));
      this.#changed();
    }
    sort() { this.#list.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0)); this.#changed(); }
    forEach(callback, self) { for (const [name, value] of this.#list) callback.call(self, value, name, this); }
    *entries() { for (const [name, value] of this.#list) yield [name, value]; }
    *keys() { for (const [name] of this.#list) yield name; }
    *values() { for (const [, value] of this.#list) yield value; }
    [Symbol.iterator]() { return this.entries(); }
    toString() { return this.#list.map(([name, value]) => `${formEncode(name)}=${formEncode(value)}`).join('&'); }
    [Symbol.for('nodejs.util.inspect.custom')](depth, options, inspect) {
      return this.#list.length ? `URLSearchParams { ${this.#list.map(([name, value]) => `${inspect(name)} => ${inspect(value)}`).join(', ')} }` : 'URLSearchParams {}';
    }
  }

  function fileURLToPath(value) {
    const url = typeof value === 'string' ? new URL(value) : value;
    if (url.protocol !== 'file:') throw coded(TypeError, 'ERR_INVALID_URL_SCHEME', 'The URL must be of scheme file');
    return decodeURIComponent(url.pathname);
  }
  function pathToFileURL(path) {
    return new URL('file://' + encode(internal('path').resolve(path), /[\x00-\x20"#<>?`{}%\\\x7f]/) + (path.endsWith('/') && path !== '/' ? '/' : ''));
  }

  // The old url.parse, for the scripts that still use it
  function parse(text, parseQuery) {
    const match = /^(?:([a-zA-Z][a-zA-Z0-9+.-]*:))?(\/\/)?(?:([^@/?#]*)@)?([^:/?#]*)(?::(\d+))?([^?#]*)(\?[^#]*)?(#.*)?$/.exec(text) ?? [];
    const [, protocol = null, slashes, auth = null, host, port = null, pathname, search = null, hash = null] = match;
    const hasHost = Boolean(slashes);
    const queryText = search === null ? null : search.slice(1);
    return { protocol, slashes: slashes ? true : null, auth, host: hasHost ? host + (port ? ':' + port : '') : null, port, hostname: hasHost ? host : null, hash, search,
      query: parseQuery ? internal('querystring').parse(queryText ?? '') : queryText, pathname: (hasHost ? pathname || '/' : host + pathname) || null, path: ((hasHost ? pathname || '/' : host + pathname) || '') + (search ?? '') || null, href: text };
  }

  Object.assign(exports, { URL, URLSearchParams, fileURLToPath, pathToFileURL, parse, format: (url) => (typeof url === 'string' ? url : url.href ?? String(url)),
    resolve: (from, to) => new URL(to, new URL(from, 'resolve://x/')).href.replace(/^resolve:\/\/x\//, '/').replace(/^resolve:\/\/x/, ''), domainToASCII: (name) => hostname(name) ?? '', domainToUnicode: (name) => name,
    urlToHttpOptions: (url) => ({ protocol: url.protocol, hostname: url.hostname, hash: url.hash, search: url.search, pathname: url.pathname, path: url.pathname + url.search, href: url.href }) });
})

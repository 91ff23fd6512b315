// node:querystring
(function (binding, internal, module) {
  'use strict';
  const escape = (text) => encodeURIComponent(String(text)).replace(/[!'()*]/g, (c) => (c === "'" ? '%27' : c));
  function unescape(text) { try { return decodeURIComponent(text.replaceAll('+', ' ')); } catch { return text; } }
  function parse(text, separator = '&', equals = '=') {
    const result = Object.create(null);
    for (const pair of String(text).split(separator)) {
      if (!pair) continue;
      const at = pair.indexOf(equals);
      const key = unescape(at === -1 ? pair : pair.slice(0, at)), value = at === -1 ? '' : unescape(pair.slice(at + equals.length));
      result[key] = key in result ? [].concat(result[key], value) : value;
    }
    return result;
  }
  function stringify(object, separator = '&', equals = '=') {
    const text = (value) => (typeof value === 'object' || value === undefined ? '' : escape(value));
    return Object.entries(object ?? {}).flatMap(([key, value]) => [].concat(value).map((item) => `${escape(key)}${equals}${text(item)}`)).join(separator);
  }
  module.exports = { parse, stringify, escape, unescape, decode: parse, encode: stringify };
})

// node:path, POSIX flavour.
(function (binding, internal, module) {
  'use strict';

  function check(value, name) {
    if (typeof value !== 'string') throw internal('errors').invalidArgType(name, 'of type string', value);
    return value;
  }

  function collapse(path, isAbsolute) {
    const kept = [];
    for (const part of path.split('/')) {
      if (part === '' || part === '.') continue;
      if (part !== '..') kept.push(part);
      else if (kept.length && kept.at(-1) !== '..') kept.pop();
      else if (!isAbsolute) kept.push('..');
    }
    return kept.join('/');
  }

  function normalize(path) {
    if (check(path, 'path') === '') return '.';
    const isAbsolute = path[0] === '/';
    let text = collapse(path, isAbsolute);
    if (!text && !isAbsolute) text = '.';
    if (text && path.endsWith('/')) text += '/';
    return isAbsolute ? '/' + text : text;
  }

  function resolve(...paths) {
    let resolved = '';
    for (let i = paths.length - 1; i >= 0 && resolved[0] !== '/'; i--) {
      if (check(paths[i], `paths[${i}]`)) resolved = resolved ? `${paths[i]}/${resolved}` : paths[i];
    }
    if (resolved[0] !== '/') resolved = `${internal('process').process.cwd()}/${resolved}`;
    return '/' + collapse(resolved, true);
  }

  function join(...paths) {
    const used = paths.filter((path) => check(path, 'path'));
    return used.length ? normalize(used.join('/')) : '.';
  }

  function dirname(path) {
    if (check(path, 'path') === '') return '.';
    const trimmed = path.replace(/\/+$/, '');
    if (!trimmed) return '/';
    const at = trimmed.lastIndexOf('/');
    if (at === -1) return '.';
    return trimmed.slice(0, at).replace(/\/+$/, '') || '/';
  }

  function basename(path, suffix) {
    const name = check(path, 'path').replace(/\/+$/, '').split('/').pop();
    return suffix && name !== suffix && name.endsWith(suffix) ? name.slice(0, -suffix.length) : name;
  }

  function extname(path) {
    const name = basename(path);
    const at = name.lastIndexOf('.');
    return at <= 0 || name === '..' ? '' : name.slice(at);
  }

  function relative(from, to) {
    const a = resolve(check(from, 'from')).split('/').filter(Boolean), b = resolve(check(to, 'to')).split('/').filter(Boolean);
    let same = 0;
    while (same < a.length && same < b.length && a[same] === b[same]) same++;
    return [...Array(a.length - same).fill('..'), ...b.slice(same)].join('/');
  }

  function parse(path) {
    const base = basename(path), ext = extname(path);
    const root = path[0] === '/' ? '/' : '';
    const dir = base && path.replace(/\/+$/, '').includes('/') ? dirname(path) : root;
    return { root, dir: dir === '.' && !path.startsWith('.') ? '' : dir, base, ext, name: ext ? base.slice(0, -ext.length) : base };
  }

  function format(parts) {
    const base = parts.base || `${parts.name ?? ''}${parts.ext ? (parts.ext[0] === '.' ? '' : '.') + parts.ext : ''}`;
    const dir = parts.dir || parts.root;
    return !dir ? base : dir === parts.root ? dir + base : `${dir}/${base}`;
  }

  const path = {
    resolve, normalize, isAbsolute: (path) => check(path, 'path')[0] === '/', join, relative, toNamespacedPath: (path) => path,
    dirname, basename, extname, format, parse, sep: '/', delimiter: ':', win32: null, posix: null,
  };
  path.posix = path;
  module.exports = path;
})

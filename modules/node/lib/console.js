// console: log, error, table, group, count, time and the rest.
(function (binding, internal, module, exports) {
  'use strict';
  const { formatWithOptions, inspect } = internal('inspect');
  const { now } = internal('timers');

  function createConsole(writeOut, writeError) {
    let indent = '';
    const counts = new Map(), timers = new Map();
    const print = (write, args) => {
      let text = formatWithOptions({}, ...args);
      if (indent) text = indent + text.replaceAll('\n', `\n${indent}`);
      write(text + '\n');
    };
    const out = (...args) => print(writeOut, args), error = (...args) => print(writeError, args);

    function elapsed(label) {
      const started = timers.get(label);
      if (started === undefined) { error(`Warning: No such label '${label}' for console.timeEnd()`); return undefined; }
      const ms = now() - started;
      return ms >= 1000 ? `${(ms / 1000).toFixed(3)}s` : `${Number(ms.toFixed(3))}ms`;
    }

    const api = {
      log: out, info: out, debug: out, error, warn: error,
      dir(value, options) { print(writeOut, [inspect(value, { customInspect: false, ...options })]); },
      dirxml: out,
      trace(...args) {
        const trace = { name: 'Trace', message: formatWithOptions({}, ...args) };
        Error.captureStackTrace(trace, api.trace);
        error(trace.stack);
      },
      assert(condition, ...args) { if (!condition) { if (typeof args[0] === 'string') error(`Assertion failed: ${args[0]}`, ...args.slice(1)); else error('Assertion failed', ...args); } },
      clear() {},
      count(label = 'default') { counts.set(label, (counts.get(label) ?? 0) + 1); out(`${label}: ${counts.get(label)}`); },
      countReset(label = 'default') { counts.delete(label); },
      group(...args) { if (args.length) out(...args); indent += '  '; },
      groupEnd() { indent = indent.slice(2); },
      time(label = 'default') { timers.set(label, now()); },
      timeEnd(label = 'default') { const text = elapsed(label); if (text) { out(`${label}: ${text}`); timers.delete(label); } },
      timeLog(label = 'default', ...args) { const text = elapsed(label); if (text) out(`${label}: ${text}`, ...args); },
      table(data, columns) { if (data === null || typeof data !== 'object') out(data); else out(table(data, columns)); },
    };
    api.groupCollapsed = api.group;
    return api;
  }

  function cell(value) {
    return inspect(value, { maxArrayLength: 3, breakLength: Infinity, depth: value !== null && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length > 2 ? -1 : 0 });
  }

  function table(data, wanted) {
    const isMap = data instanceof Map, isSet = data instanceof Set;
    const rows = isMap ? [...data].map(([key, value], i) => [i, { key, value }, true]) : isSet ? [...data].map((value, i) => [i, value]) : Object.keys(data).map((key) => [key, data[key]]);
    const indexTitle = isMap || isSet ? '(iteration index)' : '(index)';
    if (isMap) return draw([indexTitle, 'Key', 'Values'], rows.map(([i, { key, value }]) => [String(i), cell(key), cell(value)]));
    const columns = [];
    let hasPrimitives = false;
    for (const [, row] of rows) {
      if (row !== null && typeof row === 'object') { for (const key of wanted ?? Object.keys(row)) if (!columns.includes(key)) columns.push(key); } else hasPrimitives = true;
    }
    const lines = rows.map(([index, row]) => {
      const isObject = row !== null && typeof row === 'object';
      const cells = columns.map((key) => (isObject && Object.hasOwn(row, key) ? cell(row[key]) : ''));
      if (hasPrimitives) cells.push(isObject ? '' : cell(row));
      return [String(index), ...cells];
    });
    return draw([indexTitle, ...columns, ...(hasPrimitives ? ['Values'] : [])], lines);
  }

  function draw(titles, rows) {
    const widths = titles.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i].length)) + 2);
    const rule = (left, middle, right) => left + widths.map((width) => '─'.repeat(width)).join(middle) + right;
    const line = (cells) => `│${cells.map((text, i) => ` ${text}`.padEnd(widths[i])).join('│')}│`;
    return [rule('┌', '┬', '┐'), line(titles), rule('├', '┼', '┤'), ...rows.map(line), rule('└', '┴', '┘')].join('\n');
  }

  const console = createConsole((text) => internal('process').process.stdout.write(text), (text) => internal('process').process.stderr.write(text));
  console.Console = class Console {
    constructor(stdout, stderr) {
      const streams = stdout?.stdout ? stdout : { stdout, stderr };
      Object.assign(this, createConsole((text) => streams.stdout.write(text), (text) => (streams.stderr ?? streams.stdout).write(text)));
    }
  };
  Object.defineProperty(console, Symbol.toStringTag, { value: 'console', configurable: true });
  module.exports = console;
})

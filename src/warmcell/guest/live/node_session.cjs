'use strict';
// The worker of a JavaScript session: Node's REPL without a prompt. Descriptor 3 carries cells in and results out;
// printed output goes to the pipes at 1 and 2, which Node writes to synchronously.
// For TypeScript, types are stripped from each cell first and not checked.

const net = require('net');
const repl = require('repl');
const { PassThrough, Writable } = require('stream');
const { inspect } = require('util');

// A frame has at most 1 MiB, and JSON may take twelve bytes for a character.
const PIECE = 64 * 1024;
const LONGEST_TEXT = 32 * 1024;
const LONGEST_VALUE = 16 * 1024 * 1024;
const LONGEST_VARIABLE = 1000;
const CELL = /<cell \d+>/;
const isTyped = process.argv[2] === 'typescript';

const streams = [process.stdout, process.stderr];
const sources = new Map();
const waiting = [];
const pieces = [];
let incoming = Buffer.alloc(0);
let running = null;
let count = 0;

// ---- messages ----

const control = new net.Socket({ fd: 3 });
control.on('data', receive);
control.on('close', () => really.exit(0));
control.on('error', () => really.exit(0));

function send(message) {
  const data = Buffer.from(asciiJson(message));
  const length = Buffer.alloc(4);
  length.writeUInt32BE(data.length);
  control.write(Buffer.concat([length, data]));
}

function asciiJson(message) {
  // A lone surrogate has no UTF-8 encoding.
  return JSON.stringify(message).replace(/[\u0080-\uffff]/g, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

function receive(data) {
  incoming = Buffer.concat([incoming, data]);
  while (incoming.length >= 4 && incoming.length >= 4 + incoming.readUInt32BE(0)) {
    const end = 4 + incoming.readUInt32BE(0);
    take(JSON.parse(incoming.subarray(4, end).toString()));
    incoming = incoming.subarray(end);
  }
  next();
}

function take(message) {
  if (message.op === 'piece') {
    pieces.push(message.text);
  } else if (message.op === 'interrupt') {
    // Interrupted before the cell started; a running cell gets the signal itself.
    const meant = waiting.find((request) => request.cell === message.cell);
    if (meant) meant.isInterrupted = true;
  } else {
    if (pieces.length) message.code = pieces.splice(0).join('') + message.code;
    waiting.push(message);
  }
}

function next() {
  if (running || !waiting.length) return;
  const request = waiting.shift();
  if (request.op === 'variables') {
    send({ event: 'variables', cell: request.cell, names: variables(), error: null });
    next();
  } else if (request.op === 'run') {
    runCell(request);
  }
}

// ---- the interpreter ----

const really = { exit: process.exit.bind(process) };
class ProcessExit extends Error {}
process.exit = process.reallyExit = (code) => {
  const error = new ProcessExit(String(code ?? process.exitCode ?? 0));
  error.name = 'ProcessExit';
  throw error;
};
process.on('uncaughtException', complain);
process.on('unhandledRejection', complain);

function complain(error) {
  process.stderr.write(`Uncaught ${isError(error) ? cleaned(error.stack) : shown(error)}\n`);
}

// While a script runs, Node handles the signal itself and ends the script. Its handler replaces all others, which are
// restored when the script ends or awaits.
// A cell whose output is still being written has ended: the REPL would take the signal for a wish to leave.
const onInterrupt = () => running && !running.hasEnded && server.emit('SIGINT');
process.on('SIGINT', onInterrupt);

const server = repl.start({
  prompt: '',
  input: new PassThrough(),
  // The REPL itself prints only errors of callbacks whose cell has ended.
  output: new Writable({ write: (text, encoding, done) => process.stderr.write(text, encoding, done) }),
  terminal: false,
  useGlobal: true,
  breakEvalOnSigint: true,
});
// The REPL reports errors of cells here, and errors of callbacks of earlier cells, marked.
server._domain.removeAllListeners('error');
server._domain.on('error', (error) => (running && !error?.domainThrown ? running.done(error) : complain(error)));
globalThis.require = require('module').createRequire(process.cwd() + '/');
const ownNames = new Set(Object.getOwnPropertyNames(globalThis));

function runCell(request) {
  running = request;
  count += 1;
  const before = process.cpuUsage();
  const name = `<cell ${count}>`;
  sources.set(name, request.code.split('\n'));
  request.done = once((error, value) => endCell(request, before, error, value));
  if (request.isInterrupted) return request.done({ code: 'ERR_SCRIPT_EXECUTION_INTERRUPTED' });
  let script;
  try {
    script = importing(plainScript(request.code)) + '\n';
  } catch (error) {
    return request.done(error);
  }
  process.removeAllListeners('SIGINT'); // only now: from here until the script runs, the signal ends this process
  try {
    server.eval(script, server.context, name, request.done);
  } catch (error) {
    request.done(error);
  }
  process.removeAllListeners('SIGINT');
  process.on('SIGINT', onInterrupt);
}

// Rewrites leading `import` statements, which scripts cannot have, as expressions on the same line. A script without
// them is unchanged.
const BETWEEN = /(?:\s|;|\/\/.*|\/\*[^]*?\*\/)*/y;
const IMPORT = new RegExp(
  String.raw`import\b\s*(?:(?<own>[\w$]+)\s*(?:,\s*|(?=from\b)))?` +
    String.raw`(?:\*\s*as\s+(?<all>[\w$]+)\s*|\{(?<names>[^}]*)\}\s*)?` +
    String.raw`(?:from\s*)?(?<from>'[^'\n]+'|"[^"\n]+")(?:\s*with\s*(?<with>\{[^}]*\}))?`,
  'y',
);

function importing(script) {
  let done = '';
  let at = 0;
  for (;;) {
    BETWEEN.lastIndex = at;
    const gap = BETWEEN.exec(script)[0];
    IMPORT.lastIndex = at + gap.length;
    const found = IMPORT.exec(script);
    if (!found) return done + script.slice(at);
    done += gap + imported(found.groups) + found[0].replace(/[^\n]/g, '');
    at = IMPORT.lastIndex;
  }
}

function imported({ own, all, names, from, with: kind }) {
  const module = `await import(${from}${kind ? `, { with: ${kind} }` : ''})`;
  if (all) return `var ${all} = ${module}${own ? `, ${own} = ${all}.default` : ''};`;
  const wanted = [own && `default: ${own}`, names?.replace(/\bas\b/g, ':')].filter((part) => part?.trim());
  return wanted.length ? `var { ${wanted.join(', ').replace(/\s*\n\s*/g, ' ')} } = ${module};` : `void ${module};`;
}

function plainScript(code) {
  if (!isTyped) return code;
  const { stripTypeScriptTypes } = require('module');
  try {
    return stripTypeScriptTypes(code, { mode: 'transform' });
  } catch (error) {
    if (error.code !== 'ERR_INVALID_ARG_VALUE') throw error;
    return stripTypeScriptTypes(code); // from Node 26 on it can only strip them
  }
}

function once(call) {
  let isCalled = false;
  return (...values) => {
    if (!isCalled) call(...values);
    isCalled = true;
  };
}

function endCell(request, before, error, value) {
  request.hasEnded = true;
  let described = null;
  if (error !== null && error !== undefined) {
    described = describe(error instanceof repl.Recoverable ? error.err : error);
  } else if (value !== undefined) {
    if (!server.underscoreAssigned) server.last = value;
    try {
      show(shown(value));
    } catch (failure) {
      described = describe(failure);
    }
  }
  const { user, system } = process.cpuUsage(before);
  const peak = process.resourceUsage().maxRSS * 1024;
  written(streams, () => {
    running = null;
    send({ event: 'done', cell: request.cell, error: described, count, cpu: (user + system) / 1e6, peak });
    next();
  });
}

function written([stream, ...others], then) {
  // Node buffers output that the pipe does not accept; the cell ends when it is written.
  if (!stream) then();
  else if (stream.destroyed || !stream.writableLength) written(others, then);
  else setImmediate(written, [stream, ...others], then);
}

function shown(value) {
  const text = inspect(value);
  return text.length <= LONGEST_VALUE ? text : text.slice(0, LONGEST_VALUE) + '...';
}

function show(text) {
  const mime = {};
  if (text.length <= 4096) mime['text/plain'] = text;
  else {
    for (let start = 0; start < text.length; start += PIECE) {
      send({ event: 'piece', mime: 'text/plain', text: text.slice(start, start + PIECE) });
    }
  }
  send({ event: 'display', mime, result: true, id: null, update: false, mark: 0 });
}

// ---- errors ----

function describe(error) {
  if (error && error.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') {
    return { name: 'KeyboardInterrupt', message: '', traceback: 'KeyboardInterrupt\n' };
  }
  if (!isError(error)) return { name: 'Uncaught', message: cut(shown(error)), traceback: cut(`Uncaught ${shown(error)}\n`) };
  const stack = cleaned(error.stack);
  return { name: cut(String(error.name)), message: cut(String(error.message)), traceback: cut(place(stack) + stack + '\n') };
}

function isError(error) {
  return error !== null && typeof error === 'object' && typeof error.stack === 'string';
}

function cleaned(stack) {
  // Keeps the frames of the guest's cells and modules; those below its lowest cell are ours.
  const lines = stack.split('\n');
  const isFrame = (line) => /^\s+at /.test(line);
  const last = lines.map((line) => isFrame(line) && CELL.test(line)).lastIndexOf(true);
  const isOurs = (line, index) => isFrame(line) && ((last >= 0 && index > last) || /node:|node_session\.cjs|REPL/.test(line));
  return lines.filter((line, index) => !isOurs(line, index)).join('\n');
}

function place(stack) {
  const match = /(<cell \d+>):(\d+)/.exec(stack);
  const source = match && sources.get(match[1])?.[match[2] - 1];
  return source && !stack.startsWith(match[1]) ? `${match[1]}:${match[2]}\n    ${source.trim()}\n\n` : '';
}

function cut(text) {
  return text.length <= LONGEST_TEXT ? text : `${text.slice(0, LONGEST_TEXT / 2)}\n...\n${text.slice(-LONGEST_TEXT / 2)}`;
}

// ---- variables ----

function variables() {
  const names = [...lexicalNames(), ...Object.getOwnPropertyNames(globalThis).filter((name) => !ownNames.has(name))];
  const found = {};
  let room = PIECE;
  for (const name of names) {
    if (name.startsWith('_')) continue;
    let text;
    try {
      text = inspect(require('vm').runInThisContext(name));
    } catch (error) {
      text = `<${error && error.name}>`; // not initialised yet, or a getter that throws
    }
    if (text.length > LONGEST_VARIABLE) text = text.slice(0, LONGEST_VARIABLE - 3) + '...';
    room -= name.length + text.length;
    if (room < 0) break;
    found[name] = text;
  }
  return found;
}

function lexicalNames() {
  // Names defined by `let`, `const` and `class` are on no object; the debugger interface lists them.
  const { Session } = require('inspector');
  const session = new Session();
  let names = [];
  session.connect();
  session.post('Runtime.globalLexicalScopeNames', (error, result) => {
    if (!error) names = result.names;
  });
  session.disconnect();
  return names;
}

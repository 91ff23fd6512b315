// The command line, the event loop, and what is printed when a script fails.
(function (binding, internal, module, exports) {
  'use strict';
  const { process, start } = internal('process');
  const timers = internal('timers');
  const modules = internal('modules');
  const path = internal('path');
  const fs = internal('fs');
  const { inspect } = internal('inspect');
  const rejected = new Map();
  const sources = new Map(); // filename -> text of scripts that are no files

  const HELP = `Usage: node [options] [ script.js ] [arguments]

  -                      script read from stdin
  -e, --eval=...         evaluate script
  -p, --print [...]      evaluate script and print result
  -c, --check            syntax check script without executing
  -r, --require=...      CommonJS module to preload
  --input-type=...       set module type for string input: commonjs or module
  -v, --version          print the version
  -h, --help             print this help

JavaScript is run by QuickJS in a WebAssembly sandbox: files under the mounted
directories, no processes, network by fetch() only where the host allows it.
`;

  function parse(args) {
    const options = { code: undefined, isPrinting: false, isModule: false, isCheck: false, preload: [], rest: [] };
    const value = (name, text) => { if (text === undefined) usage(`node: ${name} requires an argument`); return text; };
    for (let i = 1; i < args.length; i++) {
      const arg = args[i];
      const [, name, given] = /^(--[^=]+)=(.*)$/s.exec(arg) ?? [undefined, arg];
      switch (name) {
        case '-v': case '--version': process.stdout.write(process.version + '\n'); process.exit(0); break;
        case '-h': case '--help': process.stdout.write(HELP); process.exit(0); break;
        case '-e': case '--eval': options.code = given ?? value(name, args[++i]); break;
        case '-p': case '--print': case '-pe': options.isPrinting = true; if (given !== undefined || (args[i + 1] !== undefined && options.code === undefined)) options.code = given ?? args[++i]; break;
        case '-c': case '--check': options.isCheck = true; break;
        case '-r': case '--require': options.preload.push(given ?? value(name, args[++i])); break;
        case '--input-type': options.isModule = (given ?? value(name, args[++i])) === 'module'; break;
        case '-i': case '--interactive': break;
        case '--': options.rest = args.slice(i + 1); return options;
        default:
          if (arg.startsWith('-') && arg !== '-') {
            if (/^--(no-warnings|enable-source-maps|trace-\w+|experimental-[\w-]+|unhandled-rejections|max-old-space-size|stack-size|harmony[\w-]*|no-deprecation|expose-gc)/.test(arg)) { if (arg === '--expose-gc') globalThis.gc = binding.gc; break; }
            usage(`node: bad option: ${arg}`);
          }
          options.rest = args.slice(i);
          return options;
      }
    }
    return options;
  }

  function usage(text) {
    process.stderr.write(text + '\n');
    binding.exit(9);
  }

  // ---- running ----

  // What evaluated code finds as globals besides those of every script: the modules that Node knows by name. Described here,
  // before the snapshot, so that a run only has to apply it.
  const hidden = (value) => ({ value, writable: true, configurable: true, enumerable: false });
  const without = (descriptions, taken) => Object.fromEntries(Object.entries(descriptions).filter(([key]) => key === 'crypto' || !(key in taken)));
  const evalGlobals = without(Object.fromEntries(Object.entries(internal('builtins').builtins).filter(([key]) => !key.includes('/')).map(([key, get]) => [key, {
    get, set(value) { Object.defineProperty(globalThis, key, { value, writable: true, configurable: true }); }, configurable: true, enumerable: false,
  }])), globalThis);

  function runEval(code, options, name) {
    sources.set(name, code);
    const own = modules.makeModule(path.join(process.cwd(), name));
    const require = modules.makeRequire({ filename: own.filename, directory: process.cwd() });
    Object.defineProperties(globalThis, options.preload.length ? without(evalGlobals, globalThis) : evalGlobals);
    Object.defineProperties(globalThis, { module: hidden(own), exports: hidden(own.exports), require: hidden(require), __filename: hidden(name), __dirname: hidden('.') });
    if (options.isModule) return runModule(code, name + '1');
    const print = (result) => { if (options.isPrinting) process.stdout.write((typeof result === 'string' ? result : inspect(result)) + '\n'); };
    let result;
    try { result = binding.evalScript(code, name, 1, false); } catch (error) {
      if (!(error instanceof SyntaxError) || modules.compiles(code)) throw error;
      return runAsModule(code, name, print);
    }
    return print(result);
  }

  // What is no script has imports, or awaits at its top level. The latter still is a script in all but that: `require` and
  // the value of its last statement are there.
  function runAsModule(code, name, print) {
    if (modules.looksLikeModule(code)) return runModule(code, name + '1');
    return finish(binding.evalScript(code, name, 1, true), ({ value }) => print(value));
  }

  let unfinished;
  function finish(promise, next) {
    unfinished = promise;
    promise.then((value) => { unfinished = undefined; next?.(value); }).catch((error) => { unfinished = undefined; fatal(error); });
  }

  function runModule(source, name) {
    sources.set(name, source);
    finish(binding.evalModule(source, name));
  }

  function runFile(name) {
    const target = path.resolve(name);
    const file = modules.asFile(target) ?? modules.asDirectory(target);
    if (!file) {
      const error = new Error(`Cannot find module '${target}'`);
      error.code = 'MODULE_NOT_FOUND';
      error.requireStack = [];
      throw error;
    }
    process.argv[1] = file;
    if (modules.isEsm(file)) return runModule(modules.readSource(file), file);
    if (file.endsWith('.js') && modules.looksLikeModule(modules.readSource(file))) return runModule(modules.readSource(file), file);
    modules.loadFile(file, true);
    if (modules.running()) finish(modules.running());
  }

  function checkFile(name) {
    const file = modules.asFile(path.resolve(name));
    if (!file) throw internal('errors').codeError('ENOENT', 'open', name);
    const source = modules.readSource(file);
    if (modules.isEsm(file) || modules.looksLikeModule(source)) return;
    sources.set(file, source);
    modules.compileWrapped(source, file);
  }

  // ---- event loop ----

  const attempt = (call) => { try { call(); } catch (error) { fatal(error); } };

  // What runs between any two callbacks: ticks, then promise reactions, until both are empty; then lost rejections are fatal.
  function drain() {
    do {
      while (timers.ticks.length) attempt(timers.ticks.shift());
      attempt(() => binding.runJobs());
    } while (timers.ticks.length);
    if (rejected.size && !binding.pendingExit()) reportRejections();
  }

  function turn(call) {
    if (binding.pendingExit()) return;
    attempt(call);
    drain();
  }

  function loop() {
    drain();
    while (timers.hasWork() && !binding.pendingExit()) {
      const limit = timers.now();
      let isMore = true;
      while (isMore && timers.hasTimers()) turn(() => { isMore = timers.runDueTimer(limit); });
      for (const callback of timers.pendingIo.splice(0)) turn(callback);
      for (const immediate of timers.immediates.splice(0)) if (!immediate.isCancelled) turn(() => Reflect.apply(immediate.callback, immediate, immediate.args));
      if (!timers.immediates.length && !timers.pendingIo.length && timers.hasWork()) binding.sleep(timers.untilNextTimer());
    }
  }

  // ---- failures ----

  function onRejection(promise, reason, isHandled) {
    if (!isHandled) rejected.set(promise, reason);
    else rejected.delete(promise);
  }

  function reportRejections() {
    const lost = [...rejected];
    rejected.clear();
    for (const [promise, reason] of lost) {
      if (process.emit('unhandledRejection', reason, promise)) continue;
      if (reason instanceof Error) { fatal(reason); continue; }
      const error = new Error(`This error originated either by throwing inside of an async function without a catch block, or by rejecting a promise which was not handled with .catch(). The promise rejected with the reason "${typeof reason === 'object' ? inspect(reason) : String(reason)}".`);
      error.name = 'UnhandledPromiseRejection';
      error.code = 'ERR_UNHANDLED_REJECTION';
      error.stack = `${error.name}: ${error.message}`;
      fatal(error);
    }
  }

  function sourceLine(file, line) {
    let text = sources.get(file);
    try { text ??= file.startsWith('/') ? fs.readFileSync(file, 'utf8') : undefined; } catch { /* it may be gone by now */ }
    return text?.split('\n')[line - 1];
  }

  // "file:line", the line itself and a caret, as Node prints them above the stack
  function excerpt(error) {
    const frames = binding.errorFrames(error) ?? '';
    const [, file, line, column] = /(?:\(|at )((?:\/|\[)[^\n():]*):(\d+):(\d+)\)?$/m.exec(frames) ?? [];
    const text = file && sourceLine(file, +line);
    return text === undefined || text === '' ? '' : `${file}:${line}\n${text}\n${' '.repeat(Math.max(0, column - 1))}^\n\n`;
  }

  function isOutOfMemory(error) { return error === null || (error instanceof Error && error.name === 'InternalError' && error.message === 'out of memory'); }

  let isDying = false;
  function fatal(error) {
    if (isDying) binding.exit(7);
    if (error !== null && isOutOfMemory(error)) {
      process.stderr.write('FATAL ERROR: JavaScript heap out of memory\n');
      binding.abort();
    }
    if (process.listenerCount('uncaughtException') > 0) {
      isDying = true;
      process.emit('uncaughtException', error, 'uncaughtException');
      isDying = false;
      return;
    }
    isDying = true;
    let text;
    if (error instanceof Error) text = `${excerpt(error)}${inspect(error)}\n`;
    else text = `Uncaught:\n${typeof error === 'string' ? error : inspect(error)}\n(Use \`node --trace-uncaught ...\` to show where the exception was thrown)\n`;
    process.stderr.write(`${text}\nNode.js ${process.version}\n`);
    process.exitCode = 1;
    isDying = false;
    process.exit(1);
  }

  // ---- entry ----

  function main() {
    const args = binding.args();
    start(['/usr/bin/node']);
    const options = parse(args);
    attempt(() => {
      for (const name of options.preload) modules.makeRequire({ filename: '', directory: process.cwd() })(name);
      if (options.code !== undefined) {
        process.argv.push(...options.rest);
        runEval(options.code, options, '[eval]');
      } else if (options.rest.length && options.rest[0] !== '-') {
        process.argv.push(...options.rest);
        if (options.isCheck) checkFile(options.rest[0]);
        else runFile(options.rest[0]);
      } else {
        process.argv.push(...(options.rest.length ? options.rest : []));
        runEval(fs.readFileSync(0, 'utf8'), options, '[stdin]');
      }
    });
    loop();
    if (process.listenerCount('beforeExit') > 0) { process.emit('beforeExit', process.exitCode ?? 0); loop(); }
    if (unfinished) {
      process.stderr.write(`Warning: Detected unsettled top-level await\n`);
      process.exitCode ??= 13;
    }
    process._exiting = true;
    attempt(() => process.emit('exit', process.exitCode ?? 0));
    return Number(process.exitCode ?? 0) & 255;
  }

  // Before the snapshot: the engine makes its own functions when they are first used. What every run uses is made here, once.
  function rehearse() {
    start(['/usr/bin/node']);
    parse(['node', '-p', '0']);
    modules.makeRequire({ filename: modules.makeModule(path.join(process.cwd(), '[eval]')).filename, directory: process.cwd() });
    Object.defineProperties({}, { ...evalGlobals, module: hidden({}) });
    inspect(binding.evalScript('0', '[eval]', 1, false));
    attempt(loop);
    process.emit('exit', process.listenerCount('beforeExit'));
  }

  Object.assign(exports, { main, onRejection, fatal, rehearse });
})

// node:readline over any stream that emits 'data' and 'end'.
(function (binding, internal, module) {
  'use strict';
  const EventEmitter = internal('events');

  class Interface extends EventEmitter {
    constructor(options) {
      super();
      this.input = options.input;
      this.output = options.output;
      this.closed = false;
      const waiting = { rest: '', questions: [], lines: [] };
      Object.defineProperty(this, 'waiting', { value: waiting });
      this.input.setEncoding?.('utf8');
      this.input.on('data', (chunk) => {
        const lines = (waiting.rest + chunk).split(/\r\n|\n/);
        waiting.rest = lines.pop();
        for (const line of lines) this.deliver(line);
      });
      this.input.on('end', () => {
        if (waiting.rest) this.deliver(waiting.rest);
        waiting.rest = '';
        this.close();
      });
    }
    deliver(line) {
      const question = this.waiting.questions.shift();
      if (question) question(line);
      else this.emit('line', line);
    }
    question(text, options, callback) {
      this.output?.write(text);
      this.waiting.questions.push(typeof options === 'function' ? options : callback);
    }
    setPrompt(text) { this.promptText = text; }
    prompt() { this.output?.write(this.promptText ?? '> '); }
    write() {}
    pause() { this.input.pause?.(); return this; }
    resume() { this.input.resume?.(); return this; }
    close() {
      if (this.closed) return;
      this.closed = true;
      this.input.pause?.();
      this.emit('close');
    }
    async *[Symbol.asyncIterator]() {
      const lines = [];
      let wake = () => {};
      this.on('line', (line) => { lines.push(line); wake(); });
      this.on('close', () => wake());
      for (;;) {
        while (lines.length) yield lines.shift();
        if (this.closed) return;
        await new Promise((resolve) => { wake = resolve; });
      }
    }
  }

  const createInterface = (input, output) => new Interface(input?.input ? input : { input, output });
  class PromiseInterface extends Interface {
    question(text) { return new Promise((resolve) => super.question(text, resolve)); }
  }
  module.exports = {
    Interface, createInterface, clearLine: () => true, cursorTo: () => true, moveCursor: () => true,
    promises: { Interface: PromiseInterface, createInterface: (options) => new PromiseInterface(options) },
  };
})

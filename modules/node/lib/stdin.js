// process.stdin: a small readable stream over descriptor 0. It reads only when somebody listens.
(function (binding, internal, module, exports) {
  'use strict';
  const EventEmitter = internal('events');
  const timers = internal('timers');

  class Input extends EventEmitter {
    constructor(fd) {
      super();
      Object.assign(this, { fd, readable: true, isTTY: false, encoding: null, isPaused_: true, hasEnded: false, isScheduled: false });
      for (const key of ['isPaused_', 'hasEnded', 'isScheduled', 'encoding']) Object.defineProperty(this, key, { enumerable: false });
    }
    setEncoding(encoding) { this.encoding = encoding ?? 'utf8'; this.decoder = new TextDecoder(this.encoding === 'utf8' ? 'utf-8' : this.encoding); return this; }
    on(name, listener) {
      super.on(name, listener);
      if (name === 'data') this.resume();
      if (name === 'readable') this.pump();
      return this;
    }
    resume() { this.isPaused_ = false; this.schedule(); return this; }
    pause() { this.isPaused_ = true; return this; }
    isPaused() { return this.isPaused_; }
    ref() { return this; }
    unref() { return this; }
    setRawMode() { return this; }
    destroy() { this.hasEnded = true; return this; }
    schedule() {
      if (this.isScheduled || this.hasEnded) return;
      this.isScheduled = true;
      timers.later(() => {
        this.isScheduled = false;
        if (this.isPaused_ || this.hasEnded) return;
        const chunk = this.take();
        if (chunk === null) this.finish();
        else { this.emit('data', chunk); this.schedule(); }
      });
    }
    take() {
      const bytes = new Uint8Array(65536);
      const count = binding.read(this.fd, bytes, -1);
      if (count < 0) throw internal('errors').systemError(-count, 'read');
      if (count === 0) return null;
      const chunk = Buffer.from(bytes.buffer, 0, count);
      return this.decoder ? this.decoder.decode(chunk, { stream: true }) : chunk;
    }
    finish() {
      if (this.hasEnded) return;
      this.hasEnded = true;
      this.readable = false;
      this.emit('end');
      this.emit('close');
    }
    // 'readable' listeners: everything is read first, then handed out by read()
    pump() {
      timers.later(() => {
        const parts = [];
        for (let chunk; (chunk = this.take()) !== null;) parts.push(chunk);
        this.buffered = this.decoder ? parts.join('') : Buffer.concat(parts);
        this.emit('readable');
        if (this.buffered?.length) this.buffered = null;
        this.buffered = null;
        this.emit('readable');
        this.finish();
      });
    }
    read() {
      const chunk = this.buffered;
      this.buffered = null;
      return chunk?.length ? chunk : null;
    }
    pipe(target) {
      this.on('data', (chunk) => target.write(chunk));
      this.on('end', () => { if (target !== internal('process').process.stdout && target !== internal('process').process.stderr) target.end?.(); });
      return target;
    }
    async *[Symbol.asyncIterator]() {
      while (!this.hasEnded) {
        const chunk = await new Promise((resolve, reject) => timers.later(() => { try { resolve(this.take()); } catch (error) { reject(error); } }));
        if (chunk === null) { this.finish(); return; }
        yield chunk;
      }
    }
  }

  let instance;
  exports.stdin = () => (instance ??= new Input(0));
})

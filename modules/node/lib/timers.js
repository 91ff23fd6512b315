// Timers and the queues of the event loop. main.js drives them; nothing here runs on its own.
(function (binding, internal, module, exports) {
  'use strict';
  const ticks = [], immediates = [], pendingIo = [];
  let timers = [], nextId = 1;
  const now = () => Number(binding.hrtime()) / 1e6;

  class Timeout {
    constructor(callback, delay, args, isRepeating) {
      if (typeof callback !== 'function') throw internal('errors').invalidArgType('callback', 'of type function', callback);
      this._delay = delay >= 1 && delay <= 2147483647 ? Math.trunc(delay) : 1;
      this._repeat = isRepeating ? this._delay : null;
      hidden(this, { id: nextId++, callback, args, isReferenced: true, due: 0 });
      arm(this);
    }
    ref() { this[state].isReferenced = true; return this; }
    unref() { this[state].isReferenced = false; return this; }
    hasRef() { return this[state].isReferenced; }
    refresh() { cancel(this); arm(this); return this; }
    close() { cancel(this); return this; }
    [Symbol.toPrimitive]() { return this[state].id; }
  }
  const state = Symbol('timer');
  const hidden = (timer, value) => Object.defineProperty(timer, state, { value });

  function arm(timer) {
    const own = timer[state];
    own.due = now() + timer._delay;
    let at = timers.length;
    while (at > 0 && timers[at - 1][state].due > own.due) at--;
    timers.splice(at, 0, timer);
  }

  function cancel(timer) {
    if (typeof timer === 'number' || typeof timer === 'string') timer = timers.find((each) => each[state].id === +timer);
    if (timer instanceof Immediate) { timer.isCancelled = true; return; }
    if (!(timer instanceof Timeout)) return;
    timer._repeat = null;
    const at = timers.indexOf(timer);
    if (at !== -1) timers.splice(at, 1);
  }

  class Immediate {
    constructor(callback, args) {
      if (typeof callback !== 'function') throw internal('errors').invalidArgType('callback', 'of type function', callback);
      Object.defineProperties(this, { callback: { value: callback }, args: { value: args }, isCancelled: { value: false, writable: true } });
      immediates.push(this);
    }
    ref() { return this; }
    unref() { return this; }
    hasRef() { return true; }
  }

  // One callback at a time, so that main.js can run microtasks between any two of them.
  function runDueTimer(limit) {
    const timer = timers[0];
    if (!timer || timer[state].due > limit) return false;
    timers.shift();
    const { callback, args } = timer[state];
    try {
      Reflect.apply(callback, timer, args);
    } finally {
      if (timer._repeat !== null && !timers.includes(timer)) arm(timer);
    }
    return true;
  }

  const hasWork = () => immediates.length > 0 || pendingIo.length > 0 || timers.some((timer) => timer[state].isReferenced);
  const untilNextTimer = () => (timers.length ? Math.max(0, timers[0][state].due - now()) : 0);

  Object.assign(exports, {
    ticks, immediates, pendingIo, now, runDueTimer, hasWork, untilNextTimer, cancel,
    hasTimers: () => timers.length > 0,
    // The callback runs in a later turn of the loop and keeps the process alive until then.
    later(callback) { pendingIo.push(callback); },
    setTimeout(callback, delay, ...args) { return new Timeout(callback, delay, args, false); },
    setInterval(callback, delay, ...args) { return new Timeout(callback, delay, args, true); },
    setImmediate(callback, ...args) { return new Immediate(callback, args); },
    clearTimeout: cancel, clearInterval: cancel, clearImmediate: cancel,
    promises: {
      setTimeout: (delay, value) => new Promise((resolve) => { exports.setTimeout(resolve, delay, value); }),
      setImmediate: (value) => new Promise((resolve) => { exports.setImmediate(resolve, value); }),
      async *setInterval(delay, value) { for (;;) { await exports.promises.setTimeout(delay); yield value; } },
      scheduler: { wait: (delay) => exports.promises.setTimeout(delay) },
    },
  });
})

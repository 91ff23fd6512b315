// node:events
(function (binding, internal, module) {
  'use strict';
  const { coded, invalidArgType } = internal('errors');

  class EventEmitter {
    constructor() { this._events ??= Object.create(null); hide(this); }
    on(name, listener) { return add(this, name, listener, false); }
    prependListener(name, listener) { return add(this, name, listener, true); }
    once(name, listener) { return add(this, name, wrapOnce(this, name, listener), false); }
    prependOnceListener(name, listener) { return add(this, name, wrapOnce(this, name, listener), true); }
    off(name, listener) {
      const list = table(this)[name];
      if (!list) return this;
      const at = list.findLastIndex((entry) => entry === listener || entry.listener === listener);
      if (at !== -1) {
        const [removed] = (this._events[name] = [...list]).splice(at, 1);
        if (!this._events[name].length) delete this._events[name];
        if (name !== 'removeListener' && this._events.removeListener) this.emit('removeListener', name, removed.listener ?? removed);
      }
      return this;
    }
    emit(name, ...args) {
      const list = table(this)[name];
      if (!list) {
        if (name !== 'error') return false;
        if (args[0] instanceof Error) throw args[0];
        const error = coded(Error, 'ERR_UNHANDLED_ERROR', `Unhandled error. (${internal('inspect').inspect(args[0])})`);
        error.context = args[0];
        throw error;
      }
      for (const listener of list) Reflect.apply(listener, this, args);
      return true;
    }
    removeAllListeners(name) {
      if (name === undefined) this._events = Object.create(null);
      else delete table(this)[name];
      hide(this);
      return this;
    }
    listeners(name) { return (table(this)[name] ?? []).map((entry) => entry.listener ?? entry); }
    rawListeners(name) { return [...(table(this)[name] ?? [])]; }
    listenerCount(name) { return (table(this)[name] ?? []).length; }
    eventNames() { return Reflect.ownKeys(table(this)); }
    setMaxListeners() { return this; }
    getMaxListeners() { return EventEmitter.defaultMaxListeners; }
  }
  EventEmitter.prototype.addListener = EventEmitter.prototype.on;
  EventEmitter.prototype.removeListener = EventEmitter.prototype.off;

  function hide(emitter) {
    Object.defineProperty(emitter, '_events', { enumerable: false, writable: true, configurable: true, value: emitter._events });
  }

  // Classes that call EventEmitter.call(this), or never do, get their table on first use.
  function table(emitter) {
    if (!Object.prototype.hasOwnProperty.call(emitter, '_events') || !emitter._events) {
      emitter._events = Object.create(null);
      hide(emitter);
    }
    return emitter._events;
  }

  function add(emitter, name, listener, isFirst) {
    if (typeof listener !== 'function') throw invalidArgType('listener', 'of type function', listener);
    const events = table(emitter);
    if (events.newListener && name !== 'newListener') emitter.emit('newListener', name, listener.listener ?? listener);
    const list = events[name] ?? [];
    events[name] = isFirst ? [listener, ...list] : [...list, listener];
    return emitter;
  }

  function wrapOnce(emitter, name, listener) {
    if (typeof listener !== 'function') throw invalidArgType('listener', 'of type function', listener);
    const wrapper = function (...args) {
      emitter.removeListener(name, wrapper);
      return Reflect.apply(listener, emitter, args);
    };
    wrapper.listener = listener;
    return wrapper;
  }

  // EventEmitter must also work as a plain function: EventEmitter.call(this)
  function Callable() {
    if (new.target) return Reflect.construct(EventEmitter, [], new.target);
    if (this) table(this);
  }
  Object.defineProperty(Callable, 'name', { value: 'EventEmitter' });
  Callable.prototype = EventEmitter.prototype;
  Object.defineProperty(Callable.prototype, 'constructor', { value: Callable, writable: true, configurable: true });

  function once(emitter, name) {
    return new Promise((resolve, reject) => {
      const done = (...args) => { emitter.off('error', fail); resolve(args); };
      const fail = (error) => { emitter.off(name, done); reject(error); };
      emitter.once(name, done);
      if (name !== 'error') emitter.once('error', fail);
    });
  }

  async function* on(emitter, name) {
    const queue = [];
    let wake;
    emitter.on(name, (...args) => { queue.push(args); wake?.(); });
    for (;;) {
      while (queue.length) yield queue.shift();
      await new Promise((resolve) => { wake = resolve; });
    }
  }

  EventEmitter.defaultMaxListeners = Callable.defaultMaxListeners = 10;
  Object.assign(Callable, { EventEmitter: Callable, once, on, errorMonitor: Symbol('events.errorMonitor'), listenerCount: (emitter, name) => emitter.listenerCount(name) });
  module.exports = Callable;
})

// What a script finds without importing anything.
(function (binding, internal) {
  'use strict';
  const define = (values, isEnumerable = false) => {
    for (const [name, value] of Object.entries(values)) Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: isEnumerable });
  };
  const { process } = internal('process');
  const timers = internal('timers');
  const web = internal('web');
  define(web);
  const { Buffer, atob, btoa } = internal('buffer');
  define({ Buffer, atob, btoa, process });
  const { URL, URLSearchParams } = internal('url');
  define({ global: globalThis, URL, URLSearchParams, console: internal('console'), ...internal('fetch'), crypto: internal('crypto').webcrypto });
  const { setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate } = timers;
  const queueMicrotask = (callback) => {
    if (typeof callback !== 'function') throw internal('errors').invalidArgType('callback', 'of type function', callback);
    Promise.resolve().then(callback).catch((error) => internal('main').fatal(error));
  };
  define({ setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate, queueMicrotask, structuredClone: web.structuredClone }, true);
  define({ navigator: { hardwareConcurrency: 1, language: 'en-US', platform: 'linux', userAgent: 'Node.js/20' } });
  const engineClock = globalThis.performance;
  const performance = { now: () => engineClock.now(), mark() {}, measure() {}, toJSON: () => ({ timeOrigin: performance.timeOrigin }) };
  Object.defineProperty(performance, 'timeOrigin', { get: () => Date.now() - engineClock.now(), enumerable: true });
  define({ performance }, true);
})

// node:assert
(function (binding, internal, module) {
  'use strict';
  const { inspect } = internal('inspect');
  const { isDeepEqual, isDeepStrictEqual } = internal('equal');
  const { invalidArgType, codeInHeader } = internal('errors');

  class AssertionError extends Error {
    constructor({ message, actual, expected, operator, stackStartFn }) {
      super(message);
      this.generatedMessage = false;
      this.code = 'ERR_ASSERTION';
      this.actual = actual;
      this.expected = expected;
      this.operator = operator;
      Object.defineProperty(this, 'name', { value: 'AssertionError', writable: true, configurable: true });
      Object.defineProperty(this, codeInHeader, { value: true });
      if (stackStartFn) Error.captureStackTrace(this, stackStartFn);
    }
  }

  function fail(details, message, stackStartFn) {
    if (message instanceof Error) throw message;
    const error = new AssertionError({ ...details, message: message ?? details.message, stackStartFn });
    error.generatedMessage = message === undefined;
    throw error;
  }

  const shown = (value) => inspect(value, { depth: 1000, maxArrayLength: Infinity, sorted: true, getters: true });
  const isObject = (value) => (typeof value === 'object' && value !== null) || typeof value === 'function';
  function difference(actual, expected, title) {
    const wide = (value) => inspect(value, { compact: false, depth: 1000, maxArrayLength: Infinity, sorted: true, getters: true });
    const a = wide(actual), b = wide(expected);
    if (!a.includes('\n') && !b.includes('\n') && !isObject(actual) && !isObject(expected)) return `${title}\n\n${a} !== ${b}\n`;
    const left = a.split('\n'), right = b.split('\n'), lines = [];
    for (let i = 0; i < Math.max(left.length, right.length); i++) {
      if (left[i] === right[i]) lines.push(`  ${left[i]}`);
      else { if (i < left.length) lines.push(`+ ${left[i]}`); if (i < right.length) lines.push(`- ${right[i]}`); }
    }
    return `${title}\n+ actual - expected\n\n${lines.join('\n')}`;
  }

  function assert(value, message) {
    if (!value) fail({ actual: value, expected: true, operator: '==', message: arguments.length ? 'The expression evaluated to a falsy value' : 'No value argument passed to `assert.ok()`' }, message, assert);
  }

  // name, test, operator, text of the failure
  const comparisons = [
    ['equal', (a, b) => a == b || (a !== a && b !== b), '==', (a, b) => `${shown(a)} == ${shown(b)}`],
    ['notEqual', (a, b) => !(a == b || (a !== a && b !== b)), '!=', (a, b) => `${shown(a)} != ${shown(b)}`],
    ['strictEqual', Object.is, 'strictEqual', (a, b) => difference(a, b, 'Expected values to be strictly equal:')],
    ['notStrictEqual', (a, b) => !Object.is(a, b), 'notStrictEqual', (a) => `Expected "actual" to be strictly unequal to: ${shown(a)}`],
    ['deepEqual', isDeepEqual, 'deepEqual', (a, b) => difference(a, b, 'Expected values to be loosely deep-equal:')],
    ['notDeepEqual', (a, b) => !isDeepEqual(a, b), 'notDeepEqual', (a) => `Expected "actual" not to be loosely deep-equal to: ${shown(a)}`],
    ['deepStrictEqual', isDeepStrictEqual, 'deepStrictEqual', (a, b) => difference(a, b, 'Expected values to be strictly deep-equal:')],
    ['notDeepStrictEqual', (a, b) => !isDeepStrictEqual(a, b), 'notDeepStrictEqual', (a) => `Expected "actual" not to be strictly deep-equal to: ${shown(a)}`],
    ['match', (text, pattern) => typeof text === 'string' && pattern.test(text), 'match', (text, pattern) => `The input did not match the regular expression ${pattern}. Input:\n\n${shown(text)}\n`],
    ['doesNotMatch', (text, pattern) => !pattern.test(text), 'doesNotMatch', (text, pattern) => `The input was expected to not match the regular expression ${pattern}. Input:\n\n${shown(text)}\n`],
  ];
  for (const [name, test, operator, describe] of comparisons) {
    assert[name] = { [name](actual, expected, message) {
      if (!test(actual, expected)) fail({ actual, expected, operator, message: describe(actual, expected) }, message, assert[name]);
    } }[name];
  }

  function isExpected(error, expected, message) {
    if (expected === undefined) return;
    if (typeof expected === 'function') {
      if (expected.prototype !== undefined && error instanceof expected) return;
      if (Error.isPrototypeOf(expected) || expected === Error) throw error;
      if (Reflect.apply(expected, {}, [error]) === true) return;
      fail({ actual: error, expected, operator: 'throws', message: `The ${expected.name ? `"${expected.name}"` : ''} validation function is expected to return "true".` }, message, isExpected);
    } else if (expected instanceof RegExp) {
      if (!expected.test(String(error))) fail({ actual: error, expected, operator: 'throws', message: `The input did not match the regular expression ${expected}. Input:\n\n${shown(String(error))}\n` }, message, isExpected);
    } else {
      for (const key of expected instanceof Error ? ['name', 'message', ...Object.keys(expected)] : Object.keys(expected)) {
        const isSame = expected[key] instanceof RegExp && typeof error[key] === 'string' ? expected[key].test(error[key]) : isDeepStrictEqual(error[key], expected[key]);
        if (!isSame) fail({ actual: error, expected, operator: 'throws', message: difference({ [key]: error[key] }, { [key]: expected[key] }, 'Expected values to be strictly deep-equal:') }, message, isExpected);
      }
    }
  }
  const missing = (kind, expected, message) => fail({ operator: kind, expected, message: `Missing expected ${kind === 'rejects' ? 'rejection' : 'exception'}${expected?.name ? ` (${expected.name}).` : '.'}` }, message, assert[kind]);
  const shift = (expected, message) => (typeof expected === 'string' ? [undefined, expected] : [expected, message]);

  Object.assign(assert, {
    ok: Object.defineProperty((value, message) => { if (!value) fail({ actual: value, expected: true, operator: '==', message: 'The expression evaluated to a falsy value' }, message, assert.ok); }, 'name', { value: 'ok' }),
    fail(message = 'Failed') { fail({ operator: 'fail', message: 'Failed' }, message, assert.fail); },
    throws(call, ...rest) {
      const [expected, message] = shift(...rest);
      if (typeof call !== 'function') throw invalidArgType('fn', 'of type function', call);
      try { call(); } catch (error) { isExpected(error, expected, message); return; }
      missing('throws', expected, message);
    },
    async rejects(promise, ...rest) {
      const [expected, message] = shift(...rest);
      try { await (typeof promise === 'function' ? promise() : promise); } catch (error) { isExpected(error, expected, message); return; }
      missing('rejects', expected, message);
    },
    doesNotThrow(call, message) { try { call(); } catch (error) { fail({ actual: error, operator: 'doesNotThrow', message: `Got unwanted exception.\nActual message: "${error?.message}"` }, typeof message === 'string' ? message : undefined, assert.doesNotThrow); } },
    async doesNotReject(promise) { try { await (typeof promise === 'function' ? promise() : promise); } catch (error) { fail({ actual: error, operator: 'doesNotReject', message: `Got unwanted rejection.\nActual message: "${error?.message}"` }, undefined, assert.doesNotReject); } },
    ifError(value) { if (value !== null && value !== undefined) throw value instanceof Error ? value : new AssertionError({ message: `ifError got unwanted exception: ${inspect(value)}`, actual: value, expected: null, operator: 'ifError' }); },
    AssertionError,
  });
  assert.strict = Object.assign((...args) => assert(...args), assert, { equal: assert.strictEqual, notEqual: assert.notStrictEqual, deepEqual: assert.deepStrictEqual, notDeepEqual: assert.notDeepStrictEqual });
  assert.strict.strict = assert.strict;
  module.exports = assert;
})

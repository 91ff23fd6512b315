// Deep equality, loose and strict, as assert and util define it.
(function (binding, internal, module, exports) {
  'use strict';
  const own = (object) => [...Object.keys(object), ...Object.getOwnPropertySymbols(object).filter((key) => Object.prototype.propertyIsEnumerable.call(object, key))];

  function equal(a, b, isStrict, seen) {
    if (isStrict ? Object.is(a, b) : a == b || (a !== a && b !== b)) return true;
    if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
    if (isStrict && Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
    const kind = binding.classOf(a);
    if (kind !== binding.classOf(b)) return false;
    if (seen.get(a) === b) return true;
    seen.set(a, b);
    switch (kind) {
      case 'Date': if (a.getTime() !== b.getTime()) return false; break;
      case 'RegExp': if (String(a) !== String(b) || a.lastIndex !== b.lastIndex) return false; break;
      case 'Number': case 'String': case 'Boolean': case 'BigInt': case 'Symbol': if (!Object.is(a.valueOf(), b.valueOf())) return false; break;
      case 'Error': if (a.message !== b.message || a.name !== b.name || !equal(a.cause, b.cause, isStrict, seen)) return false; break;
      case 'ArrayBuffer': return equal(new Uint8Array(a), new Uint8Array(b), isStrict, seen);
      case 'TypedArray': return a.length === b.length && a.every((value, i) => (isStrict ? Object.is(value, b[i]) : value === b[i]));
      case 'Array': if (a.length !== b.length) return false; break;
      case 'Map': if (!equalMaps(a, b, isStrict, seen)) return false; break;
      case 'Set': if (!equalSets(a, b, isStrict, seen)) return false; break;
      case 'WeakMap': case 'WeakSet': case 'Promise': return false;
    }
    const keys = own(a);
    return keys.length === own(b).length && keys.every((key) => Object.hasOwn(b, key) && equal(a[key], b[key], isStrict, seen));
  }

  function equalMaps(a, b, isStrict, seen) {
    if (a.size !== b.size) return false;
    const left = new Set(b.keys());
    for (const [key, value] of a) {
      let match = b.has(key) ? key : undefined, isFound = b.has(key);
      if (!isFound) for (const other of left) if (equal(key, other, isStrict, seen)) { match = other; isFound = true; break; }
      if (!isFound || !equal(value, b.get(match), isStrict, seen)) return false;
      left.delete(match);
    }
    return true;
  }

  function equalSets(a, b, isStrict, seen) {
    if (a.size !== b.size) return false;
    const left = new Set(b);
    for (const value of a) {
      if (left.delete(value)) continue;
      const match = [...left].find((other) => equal(value, other, isStrict, seen));
      if (match === undefined) return false;
      left.delete(match);
    }
    return true;
  }

  exports.isDeepStrictEqual = (a, b) => equal(a, b, true, new Map());
  exports.isDeepEqual = (a, b) => equal(a, b, false, new Map());
})

// First file to run, before the snapshot: wires the library files together and fills the hooks that main.c calls.
// Every library file is the body of `function (binding, internal, module, exports)`.
(function (binding, files) {
  'use strict';
  const loaded = new Map();

  // internal('fs') -> exports of lib/fs.js, loaded on first use
  function internal(name) {
    if (loaded.has(name)) return loaded.get(name).exports;
    const body = files['node:internal/' + name];
    if (!body) throw new Error('no internal module ' + name);
    const module = { exports: {} };
    loaded.set(name, module);
    body(binding, internal, module, module.exports);
    return module.exports;
  }

  internal('errors');
  internal('globals');
  const { builtins } = internal('builtins');
  for (const name of Object.keys(builtins)) builtins[name]();
  const modules = internal('modules');
  const { main, onRejection, rehearse } = internal('main');
  Object.assign(binding.hooks, {
    main,
    resolve: modules.resolveImport,
    load: modules.loadImport,
    importMeta: modules.fillImportMeta,
    rejection: onRejection,
  });
  rehearse();
})

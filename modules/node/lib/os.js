// node:os: the little that a sandbox may say about its host, which is nothing.
(function (binding, internal, module) {
  'use strict';
  const env = () => internal('process').process.env;
  module.exports = {
    EOL: '\n', devNull: '/dev/null', platform: () => 'linux', type: () => 'Linux', arch: () => 'wasm32', machine: () => 'wasm32', release: () => '0.0.0', version: () => 'sandbox', hostname: () => env().HOSTNAME ?? 'sandbox',
    homedir: () => env().HOME ?? '/', tmpdir: () => (env().TMPDIR ?? '/tmp').replace(/(.)\/$/, '$1'), endianness: () => 'LE', uptime: () => internal('process').process.uptime(), loadavg: () => [0, 0, 0], totalmem: () => 2 ** 32, freemem: () => 2 ** 32 - binding.heapUsed(),
    cpus: () => [{ model: 'wasm', speed: 0, times: { user: 0, nice: 0, sys: 0, idle: 0, irq: 0 } }], availableParallelism: () => 1, networkInterfaces: () => ({}), userInfo: () => ({ uid: 1000, gid: 1000, username: env().USER ?? 'sandbox', homedir: env().HOME ?? '/', shell: null }),
    constants: { signals: { SIGINT: 2, SIGKILL: 9, SIGTERM: 15 }, errno: {} },
  };
})

// E2B's own SDKs for JavaScript, unmodified, against a server of ours that E2B_API_URL and E2B_SANDBOX_URL name.
// Run by scripts/test-clients, in a directory with `e2b` and `@e2b/code-interpreter` installed.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(process.cwd() + '/');
const { Sandbox, CommandExitError, FilesystemEventType, NotFoundError, TimeoutError } = require('e2b');
const { Sandbox: Interpreter } = require('@e2b/code-interpreter');

const cases = {
  async 'create, connect, list, prolong, kill'() {
    const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { for: 'javascript' }, envs: { A: 'b' } });
    assert.equal(await sandbox.isRunning(), true);
    assert.equal((await sandbox.commands.run('echo $A; pwd')).stdout, 'b\n/home/user\n');
    const again = await Sandbox.connect(sandbox.sandboxId);
    assert.equal((await again.commands.run('echo $A')).stdout, 'b\n');
    const found = await Sandbox.list({ query: { metadata: { for: 'javascript' } } }).nextItems();
    assert.deepEqual(found.map((item) => item.sandboxId), [sandbox.sandboxId]);
    await sandbox.setTimeout(60_000);
    assert.equal(await sandbox.kill(), true);
    assert.equal(await sandbox.isRunning(), false);
  },

  async 'pause and resume'() {
    await using(Sandbox, async (sandbox) => {
      await sandbox.files.write('kept', 'kept');
      assert.equal(await sandbox.pause(), true);
      const resumed = await Sandbox.connect(sandbox.sandboxId);
      assert.equal(await resumed.files.read('kept'), 'kept');
    });
  },

  async 'commands stream, fail, end in time, take input'() {
    await using(Sandbox, async (sandbox) => {
      const heard = [];
      const onStdout = (text) => heard.push(text);
      await sandbox.commands.run('echo one; sleep 0.2; echo two', { onStdout });
      assert.equal(heard.join(''), 'one\ntwo\n');
      await assert.rejects(sandbox.commands.run('echo bad >&2; exit 3'), (error) => {
        assert.ok(error instanceof CommandExitError);
        return error.exitCode === 3 && error.stderr === 'bad\n';
      });
      await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 1000 }), TimeoutError);
      const cat = await sandbox.commands.run('read line; echo got $line', { background: true, stdin: true });
      // The one past its time is ended there, in its own time; here its client has given up already.
      let pids;
      do pids = (await sandbox.commands.list()).map((process) => process.pid);
      while (pids.length > 1);
      assert.deepEqual(pids, [cat.pid]);
      await sandbox.commands.sendStdin(cat.pid, 'this\n');
      assert.equal((await cat.wait()).stdout, 'got this\n');
      const sleeping = await sandbox.commands.run('sleep 60', { background: true });
      assert.equal(await sandbox.commands.kill(sleeping.pid), true);
      await assert.rejects(sleeping.wait(), CommandExitError);
    });
  },

  async 'files'() {
    await using(Sandbox, async (sandbox) => {
      await sandbox.files.write('dir/a.txt', 'text');
      await sandbox.files.write([{ path: 'b', data: new Uint8Array([255, 0]).buffer }, { path: '/tmp/c', data: 'c' }]);
      assert.equal(await sandbox.files.read('dir/a.txt'), 'text');
      assert.deepEqual([...(await sandbox.files.read('b', { format: 'bytes' }))], [255, 0]);
      assert.deepEqual((await sandbox.files.list('.')).map((entry) => entry.name), ['b', 'dir']);
      assert.equal(await sandbox.files.makeDir('made'), true);
      assert.equal(await sandbox.files.makeDir('made'), false);
      await sandbox.files.rename('b', 'c');
      assert.equal(await sandbox.files.exists('c'), true);
      await sandbox.files.remove('c');
      await assert.rejects(sandbox.files.read('c'), NotFoundError);
      const url = await sandbox.downloadUrl('dir/a.txt');
      assert.equal(await (await fetch(url)).text(), 'text');
    });
  },

  async 'watching a directory'() {
    await using(Sandbox, async (sandbox) => {
      await sandbox.files.makeDir('seen/inner');
      let isSeen;
      const seen = new Promise((resolve) => (isSeen = resolve));
      const handle = await sandbox.files.watchDir('seen', (event) => {
        if (event.type === FilesystemEventType.WRITE && event.name === 'inner/f') isSeen();
      }, { recursive: true });
      await sandbox.files.write('seen/inner/f', 'x');
      await within(20_000, seen);
      await handle.stop();
    });
  },

  async 'a terminal'() {
    await using(Sandbox, async (sandbox) => {
      let shown = '';
      let isShown;
      const done = new Promise((resolve) => (isShown = resolve));
      const terminal = await sandbox.pty.create({
        cols: 80,
        rows: 24,
        onData: (data) => {
          shown += Buffer.from(data).toString();
          if (shown.includes('size 30 100')) isShown();
        },
      });
      await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 30 });
      await sandbox.pty.sendInput(terminal.pid, Buffer.from('echo size $(stty size)\n'));
      await within(20_000, done);
      assert.equal(await sandbox.pty.kill(terminal.pid), true);
    });
  },

  async 'cells and contexts'() {
    await using(Interpreter, async (sandbox) => {
      await sandbox.runCode('x = 20');
      const heard = [];
      const answer = await sandbox.runCode("print('hi'); 2 * x + 2", { onStdout: (message) => heard.push(message.line) });
      assert.deepEqual([answer.text, heard], ['42', ['hi\n']]);
      assert.equal((await sandbox.runCode('1/0')).error.name, 'ZeroDivisionError');
      const context = await sandbox.createCodeContext({ language: 'javascript' });
      assert.equal((await sandbox.runCode('6 * 7', { context })).text, '42');
      assert.equal((await sandbox.runCode('echo $Q', { language: 'bash', envs: { Q: 'q' } })).logs.stdout.join(''), 'q\n');
      assert.ok((await sandbox.listCodeContexts()).some((item) => item.id === context.id));
      await sandbox.restartCodeContext(context.id);
      await sandbox.removeCodeContext(context.id);
      await assert.rejects(sandbox.runCode('import time; time.sleep(60)', { timeoutMs: 1000 }), TimeoutError);
      assert.equal((await sandbox.runCode('x')).text, '20');
    });
  },

  async 'killed during a command and during a cell'() {
    const sandbox = await Interpreter.create({ timeoutMs: 120_000 });
    const command = await sandbox.commands.run('sleep 60', { background: true });
    let hasBegun;
    const begun = new Promise((resolve) => (hasBegun = resolve));
    const cell = assert.rejects(sandbox.runCode('print(1)\nimport time; time.sleep(60)', { onStdout: () => hasBegun() }));
    await within(20_000, begun);
    await sandbox.kill();
    await Promise.all([assert.rejects(command.wait(), TimeoutError), cell]);
  },
};

async function using(kind, act) {
  const sandbox = await kind.create({ timeoutMs: 120_000 });
  try {
    await act(sandbox);
  } finally {
    await sandbox.kill();
  }
}

function within(milliseconds, promise) {
  const late = new Promise((_, reject) => setTimeout(reject, milliseconds, new Error('it did not come')).unref());
  return Promise.race([promise, late]);
}

let failed = 0;
for (const [name, act] of Object.entries(cases)) {
  try {
    await act();
  } catch (error) {
    failed += 1;
    console.error(`failed: ${name}`, error);
  }
}
const versions = ['e2b', '@e2b/code-interpreter'].map((name) => `${name} ${versionOf(name)}`);
console.log(`${versions.join(', ')}: ${Object.keys(cases).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);

function versionOf(name) {
  const path = require('node:path');
  const { readFileSync } = require('node:fs');
  return JSON.parse(readFileSync(path.join(process.cwd(), 'node_modules', name, 'package.json'))).version;
}

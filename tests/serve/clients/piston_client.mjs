// A client for Piston, unmodified, against a server of ours. Run by scripts/test-clients, with its URL, in a directory with
// `piston-api` installed.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const { PistonClient } = createRequire(process.cwd() + '/')('piston-api');
const client = new PistonClient({ baseUrl: process.argv[2] });
const python = { language: 'python', version: '*' };
const answer = await client.run({ ...python, code: 'print(input())', stdin: 'typed' });
assert.deepEqual([answer.language, answer.run.stdout, answer.run.code], ['python', 'typed\n', 0]);
const failed = await client.run({ ...python, code: 'import sys; print("bad", file=sys.stderr); sys.exit(3)' });
assert.deepEqual([failed.run.code, failed.run.stderr], [3, 'bad\n']);
assert.equal((await client.run({ language: 'javascript', version: '*', code: 'console.log(6 * 7)' })).run.output, '42\n');
assert.ok((await client.getRuntimes()).some((runtime) => runtime.aliases.includes('py')));
console.log('piston-api 1.0.1: ok');
process.exit(0);

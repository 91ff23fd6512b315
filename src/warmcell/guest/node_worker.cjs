"use strict";
// Runs a guest's program in a Node that has already started, inside the finished cage. It blocks on descriptor 3 until
// the job arrives (a length, JSON, then the files), closes it, and starts the program as `node main.js` would.
const fs = require("node:fs");
const path = require("node:path");
const Module = require("node:module");

const JOB = 3;
const GO = 4;

function readExactly(size) {
  const buffer = Buffer.alloc(size);
  for (let offset = 0; offset < size; ) {
    const count = fs.readSync(JOB, buffer, offset, size - offset, null);
    if (count === 0) process.exit(0); // the supervisor closed the channel
    offset += count;
  }
  return buffer;
}

function receiveJob() {
  const job = JSON.parse(readExactly(readExactly(4).readUInt32BE(0)).toString("utf8"));
  for (const [name, size] of job.files) {
    const file = path.resolve(job.code_dir, name);
    if (path.isAbsolute(name)) fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, readExactly(size), { flag: "wx" });
  }
  fs.closeSync(JOB);
  fs.closeSync(GO); // from here on the watcher checks what the program uses
  return job;
}

function startProgram(job) {
  fs.unlinkSync(__filename);
  delete require.cache[__filename];
  for (const key of Object.keys(process.env)) delete process.env[key];
  Object.assign(process.env, job.env);
  const entry = path.join(job.code_dir, job.argv[0]);
  process.argv = [process.execPath, entry, ...job.argv.slice(1)];
  process.mainModule = undefined;
  require(path.join(job.code_dir, "boot.cjs"));
  // On an empty stack, so that stack traces start with the program.
  setImmediate(() => Module.runMain(entry));
}

startProgram(receiveJob());

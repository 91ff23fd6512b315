// For benchmarks/computesdk.py: times create to first command of E2B's provider of ComputeSDK, as computesdk/benchmarks
// does: one after another, started at intervals, and all at once. Prints the milliseconds of each as JSON.
import { createRequire } from "node:module";
import { argv, env } from "node:process";

const [, , directory, count] = argv;
const { e2b } = createRequire(`${directory}/`)("@computesdk/e2b");
const provider = e2b({ apiKey: env.E2B_API_KEY });
const INTERVAL_MS = 200;

async function one() {
  const started = performance.now();
  const sandbox = await provider.sandbox.create();
  try {
    const result = await sandbox.runCommand("echo benchmark");
    if (result.exitCode !== 0 || !result.stdout.includes("benchmark")) throw new Error(JSON.stringify(result));
    return performance.now() - started;
  } finally {
    await sandbox.destroy();
  }
}

const many = (start) => Promise.allSettled(Array.from({ length: Number(count) }, (_, index) => start(index)));
const after = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const settled = { sequential: [] };
for (let index = 0; index < Number(count); index++) settled.sequential.push(...(await Promise.allSettled([one()])));
settled.staggered = await many((index) => after(index * INTERVAL_MS).then(one));
settled.burst = await many(one);
const report = {};
for (const [name, results] of Object.entries(settled)) {
  const failures = results.filter((result) => result.status === "rejected").map((result) => String(result.reason));
  report[name] = { times: results.filter((result) => result.status === "fulfilled").map((r) => r.value), failures };
}
console.log(JSON.stringify(report));

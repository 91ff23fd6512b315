// Runs Python in Pyodide, in Node or Deno, for benchmarks/peers.py: one JSON string per line in, one JSON string of its
// output per line out. The interpreter stays from one line to the next.
import { createInterface } from "node:readline";
import { dirname } from "node:path";
import { argv, stdin } from "node:process";

const { loadPyodide } = await import(argv[2]);
const pyodide = await loadPyodide({ indexURL: dirname(argv[2]) });
for await (const line of createInterface({ input: stdin })) {
  const lines = [];
  pyodide.setStdout({ batched: (text) => lines.push(text) });
  try {
    pyodide.runPython(JSON.parse(line));
  } catch (error) {
    lines.push(String(error));
  }
  console.log(JSON.stringify(lines.join("\n")));
}

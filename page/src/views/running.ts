// One run under way, and what is known of it. Output is told at most once per frame, however fast it comes.

import { isAbort, stream } from "../api/client";
import { Store } from "../api/store";
import type { Problem, Result } from "../api/types";
import { Log, type Stream } from "../output/log";

export type RunState = {
  phase: "idle" | "running" | "ended" | "stopped" | "failed";
  log: Log;
  version: number;
  began: number;
  result: Result | null;
  error: unknown;
};

const IDLE: RunState = { phase: "idle", log: new Log(), version: 0, began: 0, result: null, error: null };

export class Running {
  readonly state = new Store<RunState>(IDLE);
  private control: AbortController | null = null;
  private isDue = false;

  async start(path: string, request: object): Promise<void> {
    this.stop();
    const control = (this.control = new AbortController());
    this.state.set({ ...IDLE, log: new Log(), phase: "running", began: performance.now() });
    try {
      for await (const event of stream(path, { json: request, signal: control.signal })) {
        if (event.name === "stdout" || event.name === "stderr") this.hear(event.name, event.data.text);
        else if (event.name === "result") this.end({ phase: "ended", result: event.data });
        else if (event.name === "error") this.end({ phase: "failed", error: asError(event.data.error) });
      }
      if (this.control === control && this.state.value.phase === "running")
        this.end({ phase: "failed", error: new Error("The server ended the stream before the program.") });
    } catch (error) {
      if (this.control === control) this.end(isAbort(error) ? { phase: "stopped" } : { phase: "failed", error });
    }
  }

  /** The server ends a run whose client hangs up. */
  stop(): void {
    this.control?.abort();
  }

  private hear(name: Stream, text: string): void {
    this.state.value.log.add(name, text);
    if (this.isDue) return;
    this.isDue = true;
    setTimeout(() => {
      this.isDue = false;
      this.end({});
    }, 40);
  }

  private end(change: Partial<RunState>): void {
    const held = this.state.value;
    this.state.set({ ...held, ...change, version: held.version + 1 });
  }
}

function asError(problem: Problem): Error {
  return Object.assign(new Error(problem.message), { hint: problem.hint });
}

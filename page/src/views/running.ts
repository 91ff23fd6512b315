// One run of the server, and what is known of it. The server keeps its events: a page that was reloaded, or that lost the
// connection, finds it again. Output is told at most once per frame, however fast it comes.

import { ask, follow, get, isAbort, post, Refusal } from "../api/client";
import { Store } from "../api/store";
import type { Problem, Result } from "../api/types";
import { Log, type SavedLog, type Stream } from "../output/log";

export type RunState = {
  phase: "idle" | "running" | "ended" | "stopped" | "failed";
  log: Log;
  version: number;
  began: number;
  result: Result | null;
  error: unknown;
};
type Saved = { id: string; phase: RunState["phase"]; log: SavedLog; result: Result | null; problem: string };

const KEY = "warmcell.run";
const LARGEST_RESULT = 1 << 20;
const IDLE: RunState = { phase: "idle", log: new Log(), version: 0, began: 0, result: null, error: null };

export class Running {
  readonly state = new Store<RunState>(IDLE);
  private id = "";
  private control: AbortController | null = null;
  private isDue = false;

  constructor() {
    this.load();
    addEventListener("pagehide", () => this.save());
  }

  async start(request: object): Promise<void> {
    this.stop();
    const control = (this.control = new AbortController());
    this.id = "";
    this.state.set({ ...IDLE, log: new Log(), phase: "running", began: Date.now() });
    try {
      this.id = (await post<{ id: string }>("/v1/runs", request, control.signal)).id;
      await this.follow(control);
    } catch (error) {
      if (this.control === control) this.change(isAbort(error) ? { phase: "stopped" } : { phase: "failed", error });
    }
  }

  stop(): void {
    if (this.state.value.phase !== "running") return;
    this.control?.abort();
    this.change({ phase: "stopped" });
    if (this.id !== "") ask(`/v1/runs/${this.id}`, { method: "DELETE" }).catch(() => undefined); // it may have ended
  }

  private async follow(control: AbortController): Promise<void> {
    try {
      for await (const { name, data } of follow(`/v1/runs/${this.id}/events`, control.signal)) {
        if (control.signal.aborted) return;
        if (name === "stdout" || name === "stderr") this.hear(name, data.text);
        else if (name === "dropped") this.state.value.log.skip(data.events);
        else if (name === "result") this.change({ phase: "ended", result: data });
        else if (name === "error") this.change({ phase: "failed", error: asError(data.error) });
      }
    } catch (error) {
      if (error instanceof Refusal && error.status === 404) throw new Refusal(404, "The run ended with the server that ran it.", "What it had printed is kept. Run it again.");
      throw error;
    }
  }

  /** What was there before the page was reloaded: output that is kept here, and a run that goes on. */
  private load(): void {
    const saved = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Saved | null;
    if (saved === null) return;
    this.id = saved.id;
    const error = saved.problem === "" ? null : new Error(saved.problem);
    this.state.value = { ...IDLE, phase: saved.phase, log: Log.load(saved.log), result: saved.result, error, began: Date.now() };
    if (saved.phase === "running") void this.attach(saved);
  }

  private async attach(saved: Saved): Promise<void> {
    const control = (this.control = new AbortController());
    try {
      const found = await get<{ created: number }>(`/v1/runs/${saved.id}`, control.signal);
      this.state.set({ ...this.state.value, log: new Log(), began: found.created * 1000 });
    } catch {
      // `follow` finds out what is the matter, and what was printed before stays on the screen.
    }
    await this.follow(control).catch((error: unknown) => !isAbort(error) && this.change({ phase: "failed", error }));
  }

  private save(): void {
    const { phase, log, result, error } = this.state.value;
    if (phase === "idle") return;
    const isSmall = JSON.stringify(result ?? null).length < LARGEST_RESULT;
    const saved: Saved = {
      id: this.id,
      phase: phase === "running" && this.id === "" ? "stopped" : phase,
      log: log.save(),
      result: result === null || isSmall ? result : { ...result, files: {}, outputs: [] },
      problem: error instanceof Error ? error.message : "",
    };
    try {
      sessionStorage.setItem(KEY, JSON.stringify(saved));
    } catch {
      sessionStorage.removeItem(KEY); // too large: the next page begins without it
    }
  }

  private hear(name: Stream, text: string): void {
    this.state.value.log.add(name, text);
    if (this.isDue) return;
    this.isDue = true;
    setTimeout(() => {
      this.isDue = false;
      this.change({});
    }, 40);
  }

  private change(change: Partial<RunState>): void {
    const held = this.state.value;
    this.state.set({ ...held, ...change, version: held.version + 1 });
  }
}

export function asError(problem: Problem): Error {
  return Object.assign(new Error(problem.message), { hint: problem.hint });
}

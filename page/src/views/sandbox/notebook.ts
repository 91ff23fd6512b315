// The cells of one sandbox: their code, what came of them, and the sessions that they ran in. The server runs cells in the
// background and the tab keeps what they left, so that neither a reload nor a server that was restarted loses them.

import { ask, follow, get, isAbort, post, Refusal } from "../../api/client";
import { Store } from "../../api/store";
import type { Cell as CellResult, Display, Session } from "../../api/types";
import { Log, type SavedLog } from "../../output/log";
import { asError } from "../running";

export type CellState = {
  id: number;
  code: string;
  phase: "new" | "running" | "ended";
  /** Which cell of the server it is or was. */
  ran: { session: string; cell: string } | null;
  log: Log;
  displays: Display[];
  result: CellResult | null;
  error: unknown;
  question: string | null;
};
/** `none`: the first cell starts a session. `lost`: the variables of the cells above are gone. */
export type SessionState = "none" | "live" | "lost";
export type NotebookState = { language: string; session: SessionState; cells: CellState[]; version: number };
type SavedCell = Pick<CellState, "id" | "code" | "phase" | "ran" | "displays" | "result"> & { log: SavedLog | null; problem: string };
type Saved = { language: string; sessions: Record<string, string>; cells: SavedCell[] };

const MOST_DISPLAYS = 100;
/** Of one cell's displays and result, in the browser's store. */
const LARGEST_SAVED = 400_000;
const SAVE_AFTER = 400;
const newCell = (id: number, code = ""): CellState => ({ id, code, phase: "new", ran: null, log: new Log(), displays: [], result: null, error: null, question: null });
const isGone = (error: unknown): boolean => error instanceof Refusal && error.status === 404;
const keyOf = (sandbox: string): string => `warmcell.cells.${sandbox}`;

const notebooks = new Map<string, Notebook>();

/** The notebook of a sandbox, which goes on while another view is looked at. */
export function notebookOf(sandbox: string): Notebook {
  const held = notebooks.get(sandbox) ?? new Notebook(sandbox);
  notebooks.set(sandbox, held);
  return held;
}

export const hasNotebook = (sandbox: string): boolean => notebooks.has(sandbox) || sessionStorage.getItem(keyOf(sandbox)) !== null;

/** Takes the cells of a sandbox that has ended into another one, where they have not run yet. */
export function moveNotebook(from: string, to: string): void {
  const old = notebookOf(from);
  const cells = old.state.value.cells.map((cell) => ({ ...cell, ran: null }));
  notebookOf(to).replace({ ...old.state.value, cells, session: cells.some((cell) => cell.phase !== "new") ? "lost" : "none" });
  forgetNotebook(from);
}

export function forgetNotebook(sandbox: string): void {
  notebooks.get(sandbox)?.close();
  notebooks.delete(sandbox);
  sessionStorage.removeItem(keyOf(sandbox));
}

export class Notebook {
  readonly state = new Store<NotebookState>({ language: "python", session: "none", cells: [newCell(1)], version: 0 });
  private sessions: Record<string, string> = {};
  private readonly control = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly at: string;

  constructor(private readonly sandbox: string) {
    this.at = `/v1/sandboxes/${sandbox}`;
    addEventListener("pagehide", () => this.save(), { signal: this.control.signal });
    this.load();
  }

  close(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.control.abort();
  }

  replace(state: NotebookState): void {
    this.state.set({ ...state, version: state.version + 1 });
    this.saveSoon();
  }

  choose(language: string): void {
    this.change({ language, session: "none" });
    void this.check();
  }

  add(): void {
    const { cells } = this.state.value;
    this.change({ cells: [...cells, newCell(Math.max(...cells.map((cell) => cell.id)) + 1)] });
  }

  remove(id: number): void {
    this.change({ cells: this.state.value.cells.filter((cell) => cell.id !== id) });
  }

  edit(id: number, change: Partial<CellState>): void {
    this.change({ cells: this.state.value.cells.map((cell) => (cell.id === id ? { ...cell, ...change } : cell)) });
  }

  /** Whether the session of the chosen language still runs. What cannot be known is left as it is. */
  async check(): Promise<void> {
    const { language } = this.state.value;
    const held = this.sessions[language];
    if (held === undefined) return this.change({ session: this.state.value.session === "lost" ? "lost" : "none" });
    const session: SessionState | null = await get<Session>(`${this.at}/sessions/${held}`, this.control.signal).then(() => "live", (error: unknown) => (isGone(error) ? "lost" : null));
    if (session === "lost") delete this.sessions[language];
    if (session !== null && this.state.value.language === language) this.change({ session });
  }

  async run(id: number): Promise<void> {
    const cell = this.find(id);
    if (cell === undefined || cell.phase === "running" || cell.code.trim() === "") return;
    this.edit(id, { ...newCell(id, cell.code), phase: "running" });
    try {
      const ran = await this.start(cell.code);
      this.edit(id, { ran });
      await this.follow(id, ran);
    } catch (error) {
      if (!isAbort(error)) this.edit(id, { phase: "ended", error });
    }
  }

  /** A session that has gone is made anew, once: then the variables of earlier cells are not there, and that is said. */
  private async start(code: string): Promise<{ session: string; cell: string }> {
    const { language } = this.state.value;
    const held = this.sessions[language];
    const session = held ?? (await post<Session>(`${this.at}/sessions`, { language }, this.control.signal)).id;
    this.sessions[language] = session;
    try {
      const { id } = await post<{ id: string }>(`${this.at}/sessions/${session}/cells`, { code, answers_input: true }, this.control.signal);
      this.change({ session: "live" });
      return { session, cell: id };
    } catch (error) {
      if (!isGone(error) || held === undefined) throw error;
      delete this.sessions[language];
      this.change({ session: "lost" });
      throw new Refusal(404, "The session has ended, and its variables are gone.", "Run the cell again: it starts a new session.");
    }
  }

  private async follow(id: number, ran: { session: string; cell: string }): Promise<void> {
    try {
      for await (const { name, data } of follow(`${this.at}/sessions/${ran.session}/cells/${ran.cell}/events`, this.control.signal)) this.hear(id, name, data);
      if (this.state.value.cells.at(-1)?.id === id) this.add();
    } catch (error) {
      if (!isGone(error)) throw error;
      void this.check();
      throw new Refusal(404, "The session ended with the server that ran it.", "What the cell had shown is kept. Run it again.");
    }
  }

  private hear(id: number, name: string, data: any): void {
    const cell = this.find(id);
    if (cell === undefined) return;
    if (name === "stdout" || name === "stderr") cell.log.add(name, data.text), this.redraw();
    else if (name === "dropped") cell.log.skip(data.events);
    else if (name === "display") this.edit(id, { displays: withDisplay(cell.displays, data) });
    else if (name === "input") this.edit(id, { question: data.prompt });
    else if (name === "answered") this.edit(id, { question: null });
    else if (name === "result") this.edit(id, { phase: "ended", result: data, displays: data.outputs ?? [], question: null }), data.status === "ended" && void this.check();
    else if (name === "error") this.edit(id, { phase: "ended", error: asError(data.error), question: null });
  }

  async interrupt(id: number): Promise<void> {
    const session = this.find(id)?.ran?.session;
    if (session !== undefined) await ask(`${this.at}/sessions/${session}/interrupt`, { method: "POST" }).catch((error: unknown) => this.edit(id, { error }));
  }

  async answer(id: number, text: string): Promise<void> {
    this.edit(id, { question: null });
    await post(`${this.at}/sessions/${this.find(id)!.ran!.session}/input`, { text }).catch((error: unknown) => this.edit(id, { error }));
  }

  async restart(): Promise<void> {
    const held = this.sessions[this.state.value.language];
    if (held === undefined) return;
    await post(`${this.at}/sessions/${held}/restart`, {});
    this.change({ session: "lost" });
  }

  private find(id: number): CellState | undefined {
    return this.state.value.cells.find((cell) => cell.id === id);
  }

  private change(change: Partial<NotebookState>): void {
    this.replace({ ...this.state.value, ...change });
  }

  private drawing: ReturnType<typeof setTimeout> | undefined;
  private redraw(): void {
    this.drawing ??= setTimeout(() => ((this.drawing = undefined), this.change({})), 40);
  }

  private saveSoon(): void {
    this.timer ??= setTimeout(() => this.save(), SAVE_AFTER);
  }

  private save(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (this.control.signal.aborted) return;
    const { language, cells } = this.state.value;
    for (let withOutput = cells.length; withOutput >= 0; withOutput = withOutput === 0 ? -1 : Math.floor(withOutput / 2)) {
      const saved: Saved = { language, sessions: this.sessions, cells: cells.map((cell, index) => savedCell(cell, index >= cells.length - withOutput)) };
      try {
        return sessionStorage.setItem(keyOf(this.sandbox), JSON.stringify(saved));
      } catch {
        // The store is full: the output of the last cells is kept, then of fewer, then none.
      }
    }
  }

  private load(): void {
    const saved = JSON.parse(sessionStorage.getItem(keyOf(this.sandbox)) ?? "null") as Saved | null;
    if (saved === null) return;
    this.sessions = saved.sessions;
    const cells = saved.cells.map((cell) => ({ ...newCell(cell.id, cell.code), ...cell, log: cell.log === null ? new Log() : Log.load(cell.log), error: cell.problem === "" ? null : new Error(cell.problem) }));
    this.state.value = { language: saved.language, session: "none", cells, version: 0 };
    for (const cell of saved.cells) if (cell.ran !== null && (cell.phase === "running" || cell.log === null)) void this.attach(cell);
    void this.check();
  }

  /** Reads a cell again that was running, or whose output was too large for the store. */
  private async attach({ id, ran, phase }: SavedCell): Promise<void> {
    const kept = this.find(id)!;
    this.edit(id, { log: new Log(), displays: [] });
    try {
      await this.follow(id, ran!);
    } catch (error) {
      if (isAbort(error)) return;
      const isLost = phase === "ended";
      this.edit(id, { phase: "ended", log: kept.log, displays: kept.displays, error: isLost ? new Error("The output of this cell was too large to be kept over a reload.") : error });
    }
  }
}

function savedCell(cell: CellState, withOutput: boolean): SavedCell {
  const { id, code, phase, ran, displays, result, error } = cell;
  const isRunning = phase === "running" && ran !== null;
  const base = { id, code, phase: phase === "running" && ran === null ? ("new" as const) : phase, ran, problem: error instanceof Error ? error.message : "" };
  const isSmall = withOutput && JSON.stringify([displays, result]).length < LARGEST_SAVED;
  if (phase !== "new" && !isSmall && !isRunning) return { ...base, displays: [], result: result === null ? null : { ...result, outputs: [] }, log: null };
  return { ...base, displays: isSmall ? displays : [], result, log: cell.log.save() };
}

/** What was shown under an id is replaced by what is shown under it later. */
function withDisplay(displays: Display[], next: Display): Display[] {
  const same = next.display_id === null ? -1 : displays.findIndex((one) => one.display_id === next.display_id);
  return same === -1 ? [...displays, next].slice(-MOST_DISPLAYS) : displays.map((one, index) => (index === same ? next : one));
}

// A session as cells: each with its code and what came of it. Variables stay from one to the next.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, isAbort, post, Refusal, stream } from "../../api/client";
import type { Cell as CellResult, Display, Session } from "../../api/types";
import { Editor } from "../../editor/editor";
import { nameOf } from "../../editor/languages";
import { Log } from "../../output/log";
import { Rich } from "../../output/rich";
import { Terminal } from "../../output/terminal";
import { seconds } from "../../ui/figures";
import { IconPlus, IconReload, IconRun, IconStop, IconTrash } from "../../ui/icons";
import { Failure } from "../../ui/states";
import { Install } from "./install";

const LANGUAGES = ["python", "javascript", "command"];
type Held = { id: number; code: string };

let nextCell = 1;
const newCell = (code = ""): Held => ({ id: nextCell++, code });

export function Cells({ at }: { at: string }) {
  const [language, setLanguage] = useState("python");
  const [cells, setCells] = useState<Held[]>(() => [newCell()]);
  const [failure, setFailure] = useState<unknown>(null);
  const sessions = useRef<Record<string, Promise<Session>>>({});

  /** The session of the chosen language, made when the first cell needs it. One that has gone is made anew. */
  const session = (): Promise<Session> => {
    const held = (sessions.current[language] ??= post<Session>(`${at}/sessions`, { language }));
    held.catch(() => delete sessions.current[language]);
    return held;
  };
  const restart = async () => {
    setFailure(null);
    const held = sessions.current[language];
    if (held === undefined) return;
    await post(`${at}/sessions/${(await held).id}/restart`, {}).catch(setFailure);
  };
  const after = (id: number) => {
    const index = cells.findIndex((cell) => cell.id === id);
    if (index === cells.length - 1) setCells([...cells, newCell()]);
  };
  return (
    <div class="cells">
      <div class="toolbar">
        <label class="choice">
          <span class="visually-hidden">Language of the cells</span>
          <select value={language} onChange={(event) => setLanguage(event.currentTarget.value)}>
            {LANGUAGES.map((one) => <option value={one}>{nameOf(one)}</option>)}
          </select>
        </label>
        <span class="note">Variables stay from cell to cell.</span>
        <span class="grow" />
        <Install at={at} manager={language === "javascript" ? "npm" : "pip"} isOffered={language !== "command"} />
        <button class="quiet" onClick={() => void restart()}><IconReload /> Restart</button>
      </div>
      {failure != null && <Failure error={failure} />}
      {cells.map((cell, index) => (
        <CellView
          key={cell.id}
          at={at}
          code={cell.code}
          language={language}
          number={index + 1}
          session={session}
          forget={() => delete sessions.current[language]}
          onChange={(code) => setCells((before) => before.map((one) => (one.id === cell.id ? { ...one, code } : one)))}
          onRun={() => after(cell.id)}
          onRemove={cells.length === 1 ? undefined : () => setCells(cells.filter((one) => one.id !== cell.id))}
        />
      ))}
      <button class="quiet add-cell" onClick={() => setCells([...cells, newCell()])}><IconPlus /> Add a cell</button>
    </div>
  );
}

type CellProps = {
  at: string;
  code: string;
  language: string;
  number: number;
  session: () => Promise<Session>;
  forget: () => void;
  onChange: (code: string) => void;
  onRun: () => void;
  onRemove?: () => void;
};
type Shown = { log: Log; version: number; displays: Display[]; result: CellResult | null; error: unknown; question: string | null };
const NOTHING: Shown = { log: new Log(), version: 0, displays: [], result: null, error: null, question: null };

function CellView(props: CellProps) {
  const { at, code, language, number } = props;
  const [shown, setShown] = useState<Shown>(NOTHING);
  const [isRunning, setRunning] = useState(false);
  const held = useRef<{ session: Session | null; control: AbortController | null }>({ session: null, control: null });
  useEffect(() => () => held.current.control?.abort(), []);

  const run = async () => {
    if (isRunning || code.trim() === "") return;
    const control = (held.current.control = new AbortController());
    const log = new Log();
    setRunning(true);
    setShown({ ...NOTHING, log });
    const tell = (change: Partial<Shown>) => setShown((before) => ({ ...before, ...change, version: before.version + 1 }));
    try {
      const session = (held.current.session = await props.session());
      const request = { json: { code, answers_input: true }, signal: control.signal };
      for await (const { name, data } of stream(`${at}/sessions/${session.id}/run`, request)) {
        if (name === "stdout" || name === "stderr") log.add(name, data.text), tell({});
        else if (name === "display") setShown((before) => ({ ...before, displays: withDisplay(before.displays, data) }));
        else if (name === "input") tell({ question: data.prompt });
        else if (name === "result") tell({ result: data, displays: data.outputs ?? [], question: null });
        else if (name === "error") tell({ error: Object.assign(new Error(data.error.message), { hint: data.error.hint }) });
      }
      props.onRun();
    } catch (error) {
      if (error instanceof Refusal && error.status === 404) props.forget();
      if (!isAbort(error)) tell({ error });
    } finally {
      setRunning(false);
    }
  };
  const stop = async () => {
    const session = held.current.session;
    if (session !== null) await ask(`${at}/sessions/${session.id}/interrupt`, { method: "POST" }).catch(() => held.current.control?.abort());
  };
  const answer = async (text: string) => {
    setShown((before) => ({ ...before, question: null }));
    await post(`${at}/sessions/${held.current.session!.id}/input`, { text }).catch((error: unknown) => setShown((before) => ({ ...before, error })));
  };
  return (
    <article class="card cell" aria-label={`Cell ${number}`} onKeyDown={(event) => event.key === "Escape" && isRunning && (event.preventDefault(), void stop())}>
      <div class="cell-code">
        {isRunning ? (
          <button class="cell-run stop icon" aria-label={`Stop cell ${number}`} onClick={() => void stop()}><IconStop /></button>
        ) : (
          <button class="cell-run icon" aria-label={`Run cell ${number}`} onClick={() => void run()} disabled={code.trim() === ""}><IconRun /></button>
        )}
        <Editor code={code} language={language} label={`Code of cell ${number}`} onChange={props.onChange} onRun={() => void run()} isCompact />
        {props.onRemove && !isRunning && (
          <button class="quiet icon" aria-label={`Remove cell ${number}`} onClick={props.onRemove}><IconTrash /></button>
        )}
      </div>
      <CellOutput shown={shown} isRunning={isRunning} onAnswer={(text) => void answer(text)} />
    </article>
  );
}

/** What was shown under an id is replaced by what is shown under it later. */
function withDisplay(displays: Display[], next: Display): Display[] {
  const same = next.display_id === null ? -1 : displays.findIndex((one) => one.display_id === next.display_id);
  return same === -1 ? [...displays, next].slice(-100) : displays.map((one, index) => (index === same ? next : one));
}

function CellOutput({ shown, isRunning, onAnswer }: { shown: Shown; isRunning: boolean; onAnswer: (text: string) => void }) {
  const { log, displays, result, question } = shown;
  const isEmpty = log.lines.length === 0 && displays.length === 0 && !result?.error && !isRunning && shown.error == null;
  if (isEmpty && result === null) return null;
  const problem = result?.error ?? null;
  return (
    <div class="cell-output" aria-live="polite">
      {log.lines.length > 0 && <Terminal log={log} version={shown.version} label="Output of the cell" />}
      {displays.map((display, index) => <div class="shown" key={index}><Rich bundle={display.mime} /></div>)}
      {question !== null && (
        <form class="question" onSubmit={(event) => (event.preventDefault(), onAnswer(new FormData(event.currentTarget).get("text") as string))}>
          <label class="field"><span>{question || "The cell asks for input"}</span><input name="text" autofocus autocomplete="off" /></label>
          <button type="submit">Answer</button>
        </form>
      )}
      {problem !== null && <pre class="traceback">{plainText(problem.traceback || `${problem.name ?? "error"}: ${problem.message}`)}</pre>}
      {shown.error != null && <Failure error={shown.error} />}
      <p class="cell-foot note">
        {isRunning ? <><span class="spinner" aria-hidden="true" /> Running</> : result !== null ? `${result.error ? "Raised" : "Done"} in ${seconds(result.duration ?? null)}` : "Ended"}
      </p>
    </div>
  );
}

const plainText = (text: string): string => text.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, "");

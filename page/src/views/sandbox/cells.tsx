// A session as cells: each with its code and what came of it.

import { useEffect, useState } from "preact/hooks";
import { connection } from "../../api/connection";
import { useStore } from "../../api/store";
import { Editor } from "../../editor/editor";
import { nameOf } from "../../editor/languages";
import { Rich } from "../../output/rich";
import { Terminal } from "../../output/terminal";
import { seconds } from "../../ui/figures";
import { IconPlus, IconReload, IconRun, IconStop, IconTrash } from "../../ui/icons";
import { Failure } from "../../ui/states";
import { Install } from "./install";
import { notebookOf, type CellState, type Notebook, type SessionState } from "./notebook";

const LANGUAGES = ["python", "javascript", "command"];
const SESSIONS: Record<SessionState, string> = {
  none: "The first cell starts a session.",
  live: "Variables stay from cell to cell.",
  lost: "The session is new: variables of earlier cells are gone.",
};

/** `isEnded`: the sandbox is no more, and its cells can only be read. */
export function Cells({ id, canInstall, isEnded = false }: { id: string; canInstall: boolean; isEnded?: boolean }) {
  const notebook = notebookOf(id);
  const { language, session, cells, version } = useStore(notebook.state);
  const { epoch } = useStore(connection);
  const [failure, setFailure] = useState<unknown>(null);
  useEffect(() => {
    if (!isEnded) void notebook.check();
  }, [notebook, epoch, isEnded]);
  const restart = () => (setFailure(null), notebook.restart().catch(setFailure));
  return (
    <div class="cells">
      {!isEnded && (
        <div class="toolbar">
          <label class="choice">
            <span class="visually-hidden">Language of the cells</span>
            <select value={language} onInput={(event) => notebook.choose(event.currentTarget.value)}>
              {LANGUAGES.map((one) => <option value={one}>{nameOf(one)}</option>)}
            </select>
          </label>
          <span class={`note session-${session}`} role="status">{SESSIONS[session]}</span>
          <span class="grow" />
          <Install at={`/v1/sandboxes/${id}`} manager={language === "javascript" ? "npm" : "pip"} isOffered={canInstall && language !== "command"} />
          <button class="quiet" disabled={session === "none"} onClick={() => void restart()}><IconReload /> Restart</button>
        </div>
      )}
      {failure != null && <Failure error={failure} />}
      {cells.map((cell, index) => (
        <CellView key={cell.id} notebook={notebook} cell={cell} version={version} language={language} number={index + 1} isOnly={cells.length === 1} isEnded={isEnded} />
      ))}
      {!isEnded && <button class="quiet add-cell" onClick={() => notebook.add()}><IconPlus /> Add a cell</button>}
    </div>
  );
}

type CellProps = { notebook: Notebook; cell: CellState; version: number; language: string; number: number; isOnly: boolean; isEnded: boolean };

function CellView({ notebook, cell, version, language, number, isOnly, isEnded }: CellProps) {
  const { id, code } = cell;
  const isRunning = cell.phase === "running" && !isEnded;
  const run = () => void notebook.run(id);
  const stop = () => void notebook.interrupt(id);
  return (
    <article class="card cell" aria-label={`Cell ${number}`} onKeyDown={(event) => event.key === "Escape" && isRunning && (event.preventDefault(), stop())}>
      <div class="cell-code">
        {isRunning ? (
          <button class="cell-run stop icon" aria-label={`Stop cell ${number}`} onClick={stop}><IconStop /></button>
        ) : (
          <button class="cell-run icon" aria-label={`Run cell ${number}`} onClick={run} disabled={isEnded || code.trim() === ""}><IconRun /></button>
        )}
        <Editor code={code} language={language} label={`Code of cell ${number}`} onChange={isEnded ? undefined : (text) => notebook.edit(id, { code: text })} onRun={run} isCompact />
        {!isOnly && !isRunning && !isEnded && (
          <button class="quiet icon" aria-label={`Remove cell ${number}`} onClick={() => notebook.remove(id)}><IconTrash /></button>
        )}
      </div>
      {cell.phase !== "new" && <CellOutput cell={cell} version={version} number={number} isRunning={isRunning} onAnswer={(text) => void notebook.answer(id, text)} />}
    </article>
  );
}

function CellOutput({ cell, version, number, isRunning, onAnswer }: { cell: CellState; version: number; number: number; isRunning: boolean; onAnswer: (text: string) => void }) {
  const { log, displays, result, question } = cell;
  const problem = result?.error ?? null;
  return (
    <div class="cell-output" aria-live="polite">
      {!log.isEmpty && <Terminal log={log} version={version} label={`Output of cell ${number}`} />}
      {displays.map((display, index) => <div class="shown" key={index}><Rich bundle={display.mime} /></div>)}
      {question !== null && isRunning && (
        <form class="question" onSubmit={(event) => (event.preventDefault(), onAnswer(new FormData(event.currentTarget).get("text") as string))}>
          <label class="field"><span>{question || "The cell asks for input"}</span><input name="text" autofocus autocomplete="off" /></label>
          <button type="submit">Answer</button>
        </form>
      )}
      {problem !== null && <pre class="traceback" tabIndex={0}>{plainText(problem.traceback || `${problem.name ?? "error"}: ${problem.message}`)}</pre>}
      {cell.error != null && <Failure error={cell.error} />}
      <p class="cell-foot note">
        {isRunning ? <><span class="spinner" aria-hidden="true" /> Running</> : result !== null ? `${result.error ? "Raised" : "Done"} in ${seconds(result.duration ?? null)}` : "Ended"}
      </p>
    </div>
  );
}

const plainText = (text: string): string => text.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, "");

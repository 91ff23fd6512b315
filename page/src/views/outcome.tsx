// What a program printed, left behind and cost; what it was refused; and what held it.

import { useEffect, useState } from "preact/hooks";
import type { Result } from "../api/types";
import { FilesLeft } from "../output/files";
import { Rich } from "../output/rich";
import { Terminal } from "../output/terminal";
import { seconds, size } from "../ui/figures";
import { IconCode, IconWarning } from "../ui/icons";
import { Empty, Failure } from "../ui/states";
import type { RunState } from "./running";

export function Outcome({ state, onRetry }: { state: RunState; onRetry: () => void }) {
  const { phase, log, result } = state;
  if (phase === "idle")
    return (
      <div class="pane outcome">
        <Empty icon={<IconCode />} title="Nothing has run yet">
          <p class="note">
            Press <kbd>Ctrl</kbd> <kbd>↵</kbd> to run the program in a cage of its own: no network, no files of this
            machine, bounded time and memory.
          </p>
        </Empty>
      </div>
    );
  const files = result?.files ?? {};
  const hasMore = Object.keys(files).length > 0 || (result?.outputs.length ?? 0) > 0 || (result?.denials.length ?? 0) > 0;
  return (
    <div class="pane outcome">
      <Verdict state={state} />
      <div class="outcome-body">
        {!log.isEmpty ? (
          <Terminal log={log} version={state.version} label="Output of the program" />
        ) : (
          phase !== "failed" && !hasMore && <p class="silence note">{phase === "running" ? "Nothing printed yet…" : "It printed nothing."}</p>
        )}
        {phase === "failed" && <Failure error={state.error} onRetry={onRetry} />}
        {result?.error && result.status !== "success" && <Problem result={result} />}
        {(result?.stdout_truncated || result?.stderr_truncated) && <p class="note cut">The output was cut at the limit.</p>}
        {result?.denials.map((denial) => (
          <div class="denial">
            <IconWarning />
            <div>
              <strong>Refused: {denial.what}</strong>
              <p class="note">{denial.rule}{denial.hint && ` · ${denial.hint}`}</p>
            </div>
          </div>
        ))}
        {result?.outputs.map((bundle) => <div class="artefact-body"><Rich bundle={bundle} /></div>)}
        <FilesLeft files={files} />
      </div>
      {result && result.usage && <Costs result={result} />}
    </div>
  );
}

function Problem({ result }: { result: Result }) {
  return (
    <div class="denial">
      <IconWarning />
      <div>
        <strong>{result.error!.message}</strong>
        {result.error!.hint && <p class="note">{result.error!.hint}</p>}
      </div>
    </div>
  );
}

function Verdict({ state }: { state: RunState }) {
  const { tone, text } = verdictOf(state);
  return (
    <div class="verdict">
      <span class={`pill ${tone}`} role="status">
        {tone === "busy" ? <span class="spinner" aria-hidden="true" /> : <span class="dot" aria-hidden="true" />}
        {text}
      </span>
      {state.phase === "running" ? <Elapsed since={state.began} /> : state.result?.duration != null && <span class="note">{seconds(state.result.duration)}</span>}
    </div>
  );
}

export function verdictOf(state: RunState): { tone: string; text: string } {
  const { phase, result } = state;
  if (phase === "running") return { tone: "busy", text: "Running" };
  if (phase === "stopped") return { tone: "warn", text: "Stopped" };
  if (phase === "failed" || result === null) return { tone: "bad", text: "Could not be run" };
  if (result.status === "timeout") return { tone: "bad", text: "Time limit" };
  if (result.status === "memory_exceeded") return { tone: "bad", text: "Memory limit" };
  if (result.status === "error") return { tone: "bad", text: "Stopped by a limit" };
  if (result.signal !== null) return { tone: "bad", text: `Signal ${result.signal}` };
  return result.exit_code === 0 ? { tone: "good", text: "Done" } : { tone: "bad", text: `Exit ${result.exit_code}` };
}

function Elapsed({ since }: { since: number }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 100);
    return () => clearInterval(timer);
  }, []);
  return <span class="note tabular">{Math.max(0, (now - since) / 1000).toFixed(1)} s</span>;
}

function Costs({ result }: { result: Result }) {
  const held = Object.entries(result.enforced).filter(([name, by]) => by && name !== "isolation_class");
  return (
    <details class="costs">
      <summary>
        <span><b>{seconds(result.usage.cpu_time)}</b> processor</span>
        <span><b>{size(result.usage.peak_memory_bytes)}</b> memory</span>
        {result.queued >= 0.005 && <span><b>{seconds(result.queued)}</b> waited</span>}
        <span class="grow" />
        <span class="held">What held it</span>
      </summary>
      <dl>
        <dt>class</dt>
        <dd>{result.enforced["isolation_class"]}</dd>
        {held.map(([name, by]) => [<dt>{name.replaceAll("_", " ")}</dt>, <dd>{by}</dd>])}
      </dl>
    </details>
  );
}

// What runs in a sandbox: start it, watch it, write to it, end it.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, isAbort, post, stream } from "../../api/client";
import type { Process } from "../../api/types";
import { useLoaded } from "../../api/use";
import { Log } from "../../output/log";
import { Terminal } from "../../output/terminal";
import { IconPulse, IconRun, IconStop } from "../../ui/icons";
import { Empty, Failure, Skeleton } from "../../ui/states";
import { useNow } from "../sandboxes";
import { shellName } from "./terminal";

export function Processes({ at }: { at: string }) {
  const { data, error, reload } = useLoaded<Process[]>(`${at}/processes`);
  const [command, setCommand] = useState("");
  const [chosen, setChosen] = useState<number | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  useNow(2000, reload);
  const start = async () => {
    setFailure(null);
    try {
      const made = await post<Process>(`${at}/processes`, { command });
      setChosen(made.pid);
      setCommand("");
      reload();
    } catch (problem) {
      setFailure(problem);
    }
  };
  const end = async (pid: number) => {
    await ask(`${at}/processes/${pid}`, { method: "DELETE" }).catch(setFailure);
    reload();
  };
  return (
    <div class="processes">
      <form class="command" onSubmit={(event) => (event.preventDefault(), command.trim() !== "" && void start())}>
        <input aria-label="Command to start" class="mono" spellcheck={false} placeholder="python3 -m http.server 8000" value={command} onInput={(event) => setCommand(event.currentTarget.value)} />
        <button class="primary" type="submit" disabled={command.trim() === ""}><IconRun /> Start</button>
      </form>
      {(failure ?? (data === null ? error : null)) != null && <Failure error={failure ?? error} />}
      {data === null && error == null && <Skeleton rows={3} />}
      {data?.length === 0 && <Empty icon={<IconPulse />} title="Nothing has been started"><p class="note">What is started here goes on until it ends, or the sandbox does.</p></Empty>}
      {data !== null && data.length > 0 && (
        <ul class="card list">
          {[...data].reverse().map((process) => (
            <li key={process.pid}>
              <button class="quiet process" aria-expanded={chosen === process.pid} onClick={() => setChosen(chosen === process.pid ? null : process.pid)}>
                <span class={`pill ${process.is_running ? "busy" : process.exit_code === 0 ? "good" : "bad"}`}>
                  <span class="dot" aria-hidden="true" />
                  {process.is_running ? "running" : `exit ${process.exit_code ?? "?"}`}
                </span>
                {shellName(process.command) !== null ? <span class="grow process-shell">{shellName(process.command)} of the terminal</span> : <code>{process.command}</code>}
                <span class="note">pid {process.pid}</span>
              </button>
              {process.is_running && <button class="quiet icon" aria-label={`End process ${process.pid}`} onClick={() => void end(process.pid)}><IconStop /></button>}
              {chosen === process.pid && <ProcessOutput key={process.pid} at={`${at}/processes/${process.pid}`} isRunning={process.is_running} />}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function ProcessOutput({ at, isRunning }: { at: string; isRunning: boolean }) {
  const log = useRef(new Log());
  const [version, setVersion] = useState(0);
  const [failure, setFailure] = useState<unknown>(null);
  const [typed, setTyped] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const follow = async () => {
      for await (const { name, data } of stream(`${at}/output`, { signal: stop.signal })) {
        if (name !== "stdout" && name !== "stderr") continue;
        log.current.add(name, data.text);
        timer ??= setTimeout(() => ((timer = undefined), setVersion((before) => before + 1)), 40);
      }
    };
    follow().catch((error: unknown) => isAbort(error) || setFailure(error));
    return () => stop.abort();
  }, [at]);
  const write = async () => {
    await ask(`${at}/stdin`, { method: "POST", body: `${typed}\n` }).catch(setFailure);
    setTyped("");
  };
  return (
    <div class="process-output">
      {failure != null && <Failure error={failure} />}
      {log.current.isEmpty ? <p class="note">It has printed nothing.</p> : <Terminal log={log.current} version={version} label="Output of the process" />}
      {isRunning && (
        <form class="command" onSubmit={(event) => (event.preventDefault(), void write())}>
          <input aria-label="Write to the process" class="mono" placeholder="Write to it…" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          <button type="submit">Send</button>
        </form>
      )}
    </div>
  );
}

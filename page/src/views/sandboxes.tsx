// The sandboxes that stay, and one of them looked at.

import { useEffect, useState } from "preact/hooks";
import { ask, post } from "../api/client";
import type { Sandbox } from "../api/types";
import { useLoaded } from "../api/use";
import { clock, until } from "../ui/figures";
import { IconBox, IconPlus, IconTrash } from "../ui/icons";
import { useCommands } from "../ui/palette";
import { go } from "../ui/router";
import { Empty, Failure, Skeleton } from "../ui/states";
import { useDialog } from "../ui/confirm";

export const nameOfSandbox = (sandbox: Sandbox): string => sandbox.metadata["name"] || `sandbox ${sandbox.id.slice(0, 8)}`;
const LIFETIMES = [
  { seconds: 900, name: "15 minutes" },
  { seconds: 3600, name: "1 hour" },
  { seconds: 28_800, name: "8 hours" },
];

export function Sandboxes() {
  const { data, error, reload } = useLoaded<Sandbox[]>("/v1/sandboxes");
  const [failure, setFailure] = useState<unknown>(null);
  const [name, setName] = useState("");
  const [lifetime, setLifetime] = useState(3600);
  const [isMaking, setMaking] = useState(false);
  const { confirm, dialog } = useDialog();
  useNow(5000, reload);
  const make = async () => {
    setMaking(true);
    setFailure(null);
    try {
      const made = await post<Sandbox>("/v1/sandboxes", { lifetime, metadata: name.trim() === "" ? {} : { name: name.trim() } });
      go("sandboxes", made.id);
    } catch (problem) {
      setFailure(problem);
    } finally {
      setMaking(false);
    }
  };
  const destroy = async (sandbox: Sandbox) => {
    if (!(await confirm(`Destroy ${nameOfSandbox(sandbox)}?`, "All that runs in it ends, and its files are gone.", "Destroy"))) return;
    await ask(`/v1/sandboxes/${sandbox.id}`, { method: "DELETE" }).catch(setFailure);
    reload();
  };
  useCommands([{ name: "New sandbox", run: () => void make() }], [name, lifetime]);
  return (
    <section class="view" aria-labelledby="sandboxes-title">
      <header class="view-head">
        <div>
          <h1 id="sandboxes-title">Sandboxes</h1>
          <p class="note">Work directories that stay, with what runs in them.</p>
        </div>
        <form class="new-sandbox" onSubmit={(event) => (event.preventDefault(), void make())}>
          <input aria-label="Name of the new sandbox" placeholder="Name (optional)" maxLength={80} value={name} onInput={(event) => setName(event.currentTarget.value)} />
          <select aria-label="How long it stays" value={lifetime} onInput={(event) => setLifetime(Number(event.currentTarget.value))}>
            {LIFETIMES.map((one) => <option value={one.seconds}>{one.name}</option>)}
          </select>
          <button class="primary" type="submit" disabled={isMaking}><IconPlus /> New sandbox</button>
        </form>
      </header>
      {(failure ?? (data === null ? error : null)) != null && <Failure error={failure ?? error} onRetry={failure ? undefined : reload} />}
      {data === null && error == null && <Skeleton />}
      {data?.length === 0 && (
        <Empty icon={<IconBox />} title="No sandbox yet">
          <p class="note">A sandbox keeps its files, processes and variables from one call to the next, until its time is over.</p>
          <button class="primary" onClick={() => void make()} disabled={isMaking}><IconPlus /> Make one</button>
        </Empty>
      )}
      {data !== null && data.length > 0 && (
        <ul class="card list">
          {data.map((sandbox) => (
            <li key={sandbox.id}>
              <a href={`#/sandboxes/${sandbox.id}`}>
                <span class="list-icon"><IconBox /></span>
                <span class="list-text">
                  <strong>{nameOfSandbox(sandbox)}</strong>
                  <span class="note">made at {clock(sandbox.created)} · stays for {until(sandbox.expires)}</span>
                </span>
              </a>
              <button class="quiet icon" aria-label={`Destroy ${nameOfSandbox(sandbox)}`} onClick={() => void destroy(sandbox)}><IconTrash /></button>
            </li>
          ))}
        </ul>
      )}
      {dialog}
    </section>
  );
}

/** Calls it now and then, while somebody looks. */
export function useNow(milliseconds: number, call: () => void): void {
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && call(), milliseconds);
    return () => clearInterval(timer);
  }, [call]);
}

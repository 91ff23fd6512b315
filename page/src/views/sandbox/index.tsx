// One sandbox: cells, files, a terminal, processes, ports, connections.

import { useState } from "preact/hooks";
import { ask, post, Refusal } from "../../api/client";
import { useScope } from "../../api/identity";
import type { Sandbox } from "../../api/types";
import { useLoaded } from "../../api/use";
import { useDialog } from "../../ui/confirm";
import { until } from "../../ui/figures";
import { IconBack, IconTrash, IconWarning } from "../../ui/icons";
import { go } from "../../ui/router";
import { Failure, Skeleton } from "../../ui/states";
import { nameOfSandbox } from "../sandboxes";
import { Cells } from "./cells";
import { Connections } from "./connections";
import { Files } from "./files";
import { forgetNotebook, hasNotebook, moveNotebook } from "./notebook";
import { Ports } from "./ports";
import { Processes } from "./processes";
import { TerminalView } from "./terminal";

const TABS = [
  { path: "cells", name: "Cells" },
  { path: "files", name: "Files" },
  { path: "terminal", name: "Terminal" },
  { path: "processes", name: "Processes" },
  { path: "ports", name: "Ports" },
  { path: "connections", name: "Connections" },
];

export function SandboxView({ id, tab }: { id: string; tab: string }) {
  const { data, error, reload } = useLoaded<Sandbox>(`/v1/sandboxes/${encodeURIComponent(id)}`);
  const [failure, setFailure] = useState<unknown>(null);
  const { confirm, dialog } = useDialog();
  const destroy = async () => {
    if (!(await confirm(`Destroy ${nameOfSandbox(data!)}?`, "All that runs in it ends, and its files are gone.", "Destroy"))) return;
    await ask(`/v1/sandboxes/${id}`, { method: "DELETE" }).then(() => (forgetNotebook(id), go("sandboxes")), setFailure);
  };
  const at = `/v1/sandboxes/${id}`;
  const canInstall = useScope("install");
  // A terminal is begun by whoever looks at it first, and goes on while another tab is looked at, as cells do.
  const [hasTerminal, setTerminal] = useState(tab === "terminal");
  if (tab === "terminal" && !hasTerminal) setTerminal(true);
  const isGone = error instanceof Refusal && error.status === 404;
  if (isGone && hasNotebook(id)) return <Ended id={id} name={data === null ? "Sandbox" : nameOfSandbox(data)} />;
  return (
    <section class="view sandbox" aria-labelledby="sandbox-title">
      <header class="view-head">
        <div>
          <a class="back" href="#/sandboxes"><IconBack /> Sandboxes</a>
          <h1 id="sandbox-title">{data === null ? "Sandbox" : nameOfSandbox(data)}</h1>
          {data !== null && <p class="note"><code>{data.id.slice(0, 12)}…</code> stays for {until(data.expires)}</p>}
        </div>
        {data !== null && <button class="danger" onClick={() => void destroy()}><IconTrash /> Destroy</button>}
      </header>
      {(error ?? failure) != null && <Failure error={error ?? failure} onRetry={reload} />}
      {data === null && error == null && <Skeleton />}
      {data !== null && error == null && (
        <>
          <nav class="tabs" aria-label="What is in the sandbox">
            {TABS.map((one) => (
              <a aria-current={tab === one.path ? "page" : undefined} href={`#/sandboxes/${id}/${one.path}`}>
                {one.name}
              </a>
            ))}
          </nav>
          <div>
            <div hidden={tab !== "cells"}><Cells id={id} canInstall={canInstall} /></div>
            {hasTerminal && <div hidden={tab !== "terminal"}><TerminalView at={at} isShown={tab === "terminal"} /></div>}
            {tab === "files" && <Files at={at} />}
            {tab === "processes" && <Processes at={at} />}
            {tab === "ports" && <Ports at={at} />}
            {tab === "connections" && <Connections at={at} />}
          </div>
        </>
      )}
      {dialog}
    </section>
  );
}

/** A sandbox that is no more: its time is over, or the server was restarted. Its cells are still here. */
function Ended({ id, name }: { id: string; name: string }) {
  const [failure, setFailure] = useState<unknown>(null);
  const [isMaking, setMaking] = useState(false);
  const goOn = async () => {
    setMaking(true);
    try {
      const made = await post<Sandbox>("/v1/sandboxes", { metadata: name === "Sandbox" ? {} : { name } });
      moveNotebook(id, made.id);
      go("sandboxes", made.id);
    } catch (error) {
      setFailure(error);
      setMaking(false);
    }
  };
  return (
    <section class="view sandbox" aria-labelledby="sandbox-title">
      <header class="view-head">
        <div>
          <a class="back" href="#/sandboxes"><IconBack /> Sandboxes</a>
          <h1 id="sandbox-title">{name}</h1>
        </div>
      </header>
      <div class="denial ended" role="status">
        <IconWarning />
        <div>
          <strong>This sandbox has ended</strong>
          <p class="note">Its time was over, or the server was restarted. Files, processes and variables are gone; the cells and what they showed are kept in this tab.</p>
        </div>
        <button class="primary" disabled={isMaking} onClick={() => void goOn()}>Continue in a new sandbox</button>
      </div>
      {failure != null && <Failure error={failure} />}
      <Cells id={id} canInstall={false} isEnded />
    </section>
  );
}

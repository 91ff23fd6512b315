// One sandbox: cells, files, a terminal, processes, ports.

import { useState } from "preact/hooks";
import { ask } from "../../api/client";
import type { Sandbox } from "../../api/types";
import { useLoaded } from "../../api/use";
import { useDialog } from "../../ui/confirm";
import { until } from "../../ui/figures";
import { IconBack, IconTrash } from "../../ui/icons";
import { go } from "../../ui/router";
import { Failure, Skeleton } from "../../ui/states";
import { nameOfSandbox } from "../sandboxes";
import { Cells } from "./cells";
import { Files } from "./files";
import { Ports } from "./ports";
import { Processes } from "./processes";
import { TerminalView } from "./terminal";

const TABS = [
  { path: "cells", name: "Cells" },
  { path: "files", name: "Files" },
  { path: "terminal", name: "Terminal" },
  { path: "processes", name: "Processes" },
  { path: "ports", name: "Ports" },
];

export function SandboxView({ id, tab }: { id: string; tab: string }) {
  const { data, error, reload } = useLoaded<Sandbox>(`/v1/sandboxes/${encodeURIComponent(id)}`);
  const [failure, setFailure] = useState<unknown>(null);
  const { confirm, dialog } = useDialog();
  const destroy = async () => {
    if (!(await confirm(`Destroy ${nameOfSandbox(data!)}?`, "All that runs in it ends, and its files are gone.", "Destroy"))) return;
    await ask(`/v1/sandboxes/${id}`, { method: "DELETE" }).then(() => go("sandboxes"), setFailure);
  };
  const at = `/v1/sandboxes/${id}`;
  // A terminal is begun by whoever looks at it first, and goes on while another tab is looked at, as cells do.
  const [hasTerminal, setTerminal] = useState(tab === "terminal");
  if (tab === "terminal" && !hasTerminal) setTerminal(true);
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
            <div hidden={tab !== "cells"}><Cells at={at} /></div>
            {hasTerminal && <div hidden={tab !== "terminal"}><TerminalView at={at} isShown={tab === "terminal"} /></div>}
            {tab === "files" && <Files at={at} />}
            {tab === "processes" && <Processes at={at} />}
            {tab === "ports" && <Ports at={at} />}
          </div>
        </>
      )}
      {dialog}
    </section>
  );
}

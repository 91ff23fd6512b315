// What runs at this moment, of all tenants. An operator can end it.

import { useState } from "preact/hooks";
import { ask } from "../api/client";
import { useScope } from "../api/identity";
import { useLoaded } from "../api/use";
import { useDialog } from "../ui/confirm";
import { seconds } from "../ui/figures";
import { IconStop } from "../ui/icons";
import { Failure } from "../ui/states";
import { useNow } from "./sandboxes";

type ActiveRun = { id: string; language: string; state: string; seconds: number; request: string | null; tenant: string | null; sandbox: string | null };
type ActiveSandbox = { id: string; tenant: string; seconds: number };
/** Of a server over a cluster. `reason` says why a node gets no work. */
type ClusterNode = { id: string; address: string; isolation_class: string; cores: number; gpus: number; running: number; reason: string };
type Work = { runs: ActiveRun[]; sandboxes: ActiveSandbox[]; nodes?: ClusterNode[] };
type Row = { path: string; kind: string; what: string; tenant: string; id: string; seconds: number };

const rowsOf = ({ runs, sandboxes }: Work): Row[] => [
  ...runs.map((run) => ({ path: `runs/${run.id}`, kind: run.state, what: run.language || "run", tenant: run.tenant ?? "", id: run.request ?? run.id, seconds: run.seconds })),
  ...sandboxes.map((one) => ({ path: `sandboxes/${one.id}`, kind: "sandbox", what: "sandbox", tenant: one.tenant, id: one.id, seconds: one.seconds })),
];

export function Active() {
  const { data, error, reload } = useLoaded<Work>("/v1/activity");
  const canEnd = useScope("operate");
  const [failure, setFailure] = useState<unknown>(null);
  const { confirm, dialog } = useDialog();
  useNow(2000, reload);
  const rows = data === null ? [] : rowsOf(data);
  const end = async (row: Row) => {
    const text = row.kind === "sandbox" ? "All that runs in it ends, and its files are gone." : "Its client gets an error that names the operator.";
    if (!(await confirm(`End this ${row.kind === "sandbox" ? "sandbox" : "run"}?`, text, "End"))) return;
    setFailure(null);
    await ask(`/v1/activity/${row.path}`, { method: "DELETE" }).catch(setFailure);
    reload();
  };
  return (
    <section aria-labelledby="active-title" class="active">
      <h2 id="active-title">At this moment</h2>
      {(failure ?? (data === null ? error : null)) != null && <Failure error={failure ?? error} />}
      {data !== null && rows.length === 0 && <p class="note">Nothing runs, and there is no sandbox.</p>}
      {rows.length > 0 && (
        <div class="card table-card scroll-x" role="region" aria-label="Runs and sandboxes" tabIndex={0}>
          <table class="columns">
            <thead>
              <tr><th scope="col">State</th><th scope="col">What</th><th scope="col">Tenant</th><th scope="col">Id</th><th scope="col">Since</th>{canEnd && <th scope="col"><span class="visually-hidden">End</span></th>}</tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.path}>
                  <td><span class={`pill ${row.kind === "running" ? "busy" : row.kind === "waiting" ? "warn" : ""}`}><span class="dot" aria-hidden="true" />{row.kind}</span></td>
                  <td>{row.what}</td><td>{row.tenant}</td><td><code title={row.id}>{row.id.slice(0, 16)}</code></td><td class="tabular">{seconds(row.seconds)}</td>
                  {canEnd && <td><button class="quiet icon" aria-label={`End ${row.what} ${row.id.slice(0, 16)}`} onClick={() => void end(row)}><IconStop /></button></td>}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {data?.nodes !== undefined && <Nodes nodes={data.nodes} />}
      {dialog}
    </section>
  );
}

function Nodes({ nodes }: { nodes: ClusterNode[] }) {
  return (
    <>
      <h2>Nodes</h2>
      <div class="card table-card scroll-x" role="region" aria-label="Nodes of the cluster" tabIndex={0}>
        <table class="columns">
          <thead>
            <tr><th scope="col">State</th><th scope="col">Id</th><th scope="col">Address</th><th scope="col">Isolation</th><th scope="col">Processors</th><th scope="col">GPUs</th><th scope="col">Requests</th></tr>
          </thead>
          <tbody>
            {nodes.map((node) => (
              <tr key={node.id}>
                <td><span class={`pill ${node.reason === "" ? "good" : "warn"}`}><span class="dot" aria-hidden="true" />{node.reason === "" ? "ready" : node.reason}</span></td>
                <td><code title={node.id}>{node.id.slice(0, 8)}</code></td><td>{node.address}</td><td>{node.isolation_class}</td>
                <td class="tabular">{node.cores}</td><td class="tabular">{node.gpus}</td><td class="tabular">{node.running}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

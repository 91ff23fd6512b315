// What tenants and their sandboxes have used, in all. A token with the scope `metrics` sees all tenants.

import { ask } from "../api/client";
import { identity, useScope } from "../api/identity";
import { useStore } from "../api/store";
import { useLoaded } from "../api/use";
import { download } from "../ui/download";
import { seconds, size } from "../ui/figures";
import { IconDownload, IconGauge } from "../ui/icons";
import { Empty, Failure, Skeleton } from "../ui/states";
import { useNow } from "./sandboxes";

type Usage = {
  tenant: string; sandbox: string; requests: number; runs: number; cpu_seconds: number; memory_gib_seconds: number; wall_seconds: number;
  egress_sent_bytes: number; egress_received_bytes: number; stored_bytes: number;
};

export function UsageView() {
  const { data, error, reload } = useLoaded<{ usage: Usage[] }>("/v1/usage");
  const seesAll = useScope("metrics");
  const own = useStore(identity);
  useNow(5000, reload);
  const save = async () => download("usage.csv", new Uint8Array(await (await ask("/v1/usage?format=csv", { accept: "text/csv" })).arrayBuffer()));
  const rows = data?.usage ?? [];
  const total = (name: keyof Usage): number => rows.reduce((sum, row) => sum + Number(row[name]), 0);
  return (
    <section class="view usage" aria-labelledby="usage-title">
      <header class="view-head">
        <div>
          <h1 id="usage-title">Usage</h1>
          <p class="note">{seesAll ? "What all tenants have used" : "What your token has used"}, by sandbox.</p>
        </div>
        <button disabled={rows.length === 0} onClick={() => void save()}><IconDownload /> CSV</button>
      </header>
      {error != null && data === null && <Failure error={error} onRetry={reload} />}
      {data === null && error == null && <Skeleton />}
      {data !== null && rows.length === 0 && <Empty icon={<IconGauge />} title="Nothing has been used yet" />}
      {rows.length > 0 && (
        <>
          <dl class="tiles">
            <Tile name="Runs" value={total("runs").toLocaleString()} />
            <Tile name="Requests" value={total("requests").toLocaleString()} />
            <Tile name="Processor time" value={seconds(total("cpu_seconds"))} />
            <Tile name="Memory" value={`${total("memory_gib_seconds").toFixed(1)} GiB·s`} />
            <Tile name="Time of runs" value={seconds(total("wall_seconds"))} />
            <Tile name="Network sent" value={size(total("egress_sent_bytes"))} />
            <Tile name="Network received" value={size(total("egress_received_bytes"))} />
            <Tile name="Stored now" value={size(total("stored_bytes"))} />
          </dl>
          <div class="card table-card scroll-x" role="region" aria-label="Usage by sandbox" tabIndex={0}>
            <table class="columns figures">
              <thead>
                <tr>
                  <th scope="col">Tenant</th><th scope="col">Sandbox</th><th scope="col">Runs</th><th scope="col">Requests</th>
                  <th scope="col">Processor</th><th scope="col">Memory, GiB·s</th><th scope="col">Time of runs</th>
                  <th scope="col">Network sent</th><th scope="col">Network received</th><th scope="col">Stored now</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <tr key={`${row.tenant} ${row.sandbox}`}>
                    <th scope="row">{row.tenant === own?.id ? own.name : row.tenant}</th>
                    <td>{row.sandbox === "" ? <span class="note">none</span> : <code title={row.sandbox}>{row.sandbox.slice(0, 8)}</code>}</td>
                    <td>{row.runs.toLocaleString()}</td><td>{row.requests.toLocaleString()}</td>
                    <td>{seconds(row.cpu_seconds)}</td><td>{row.memory_gib_seconds.toFixed(2)}</td><td>{seconds(row.wall_seconds)}</td>
                    <td>{size(row.egress_sent_bytes)}</td><td>{size(row.egress_received_bytes)}</td><td>{size(row.stored_bytes)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </section>
  );
}

const Tile = ({ name, value }: { name: string; value: string }) => <div class="tile"><dt>{name}</dt><dd class="figure">{value}</dd></div>;

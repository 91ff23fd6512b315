// The last records of the audit: requests, runs, denials. All text in them is shown as text.

import { useState } from "preact/hooks";
import { useLoaded } from "../api/use";
import { clock, seconds } from "../ui/figures";
import { IconList, IconReload } from "../ui/icons";
import { Empty, Failure, Skeleton } from "../ui/states";
import { useNow } from "./sandboxes";

type AuditRecord = { time?: number; event: string; subject?: string } & Record<string, unknown>;

const NAMES: Record<string, string> = { request: "Requests", "run.ended": "Runs", denial: "Denials", network: "Network", file: "Files" };
const OWN_COLUMNS = ["time", "event", "subject", "tenant", "sandbox"];

export function AuditView() {
  const { data, error, isLoading, reload } = useLoaded<{ records: AuditRecord[] }>("/v1/audit?limit=500");
  const [kind, setKind] = useState("");
  const [typed, setTyped] = useState("");
  useNow(5000, reload);
  const kinds = [...new Set(data?.records.map((record) => record.event))].sort();
  const asked = typed.trim().toLowerCase();
  const shown = (data?.records ?? []).filter((record) => (kind === "" || record.event === kind) && (asked === "" || JSON.stringify(record).toLowerCase().includes(asked)));
  return (
    <section class="view audit" aria-labelledby="audit-title">
      <header class="view-head">
        <div>
          <h1 id="audit-title">Audit</h1>
          <p class="note">The last 500 records, the newest first.</p>
        </div>
        <div class="audit-tools">
          <select aria-label="Kind of record" value={kind} onInput={(event) => setKind(event.currentTarget.value)}>
            <option value="">All records</option>
            {kinds.map((one) => <option value={one}>{NAMES[one] ?? one}</option>)}
          </select>
          <input aria-label="Search the audit" placeholder="Tenant, sandbox, route…" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          <button class="icon" aria-label="Load again" disabled={isLoading} onClick={reload}><IconReload /></button>
        </div>
      </header>
      {error != null && data === null && <Failure error={error} onRetry={reload} />}
      {data === null && error == null && <Skeleton rows={8} />}
      {data !== null && shown.length === 0 && <Empty icon={<IconList />} title="No record fits" />}
      {shown.length > 0 && (
        <div class="card table-card scroll-x" role="region" aria-label="Records" tabIndex={0}>
          <table class="columns records">
            <thead>
              <tr><th scope="col">Time</th><th scope="col">Event</th><th scope="col">Tenant</th><th scope="col">Sandbox</th><th scope="col">What happened</th></tr>
            </thead>
            <tbody>{shown.map((record, index) => <Row key={`${record.time} ${record.subject} ${record.event} ${index}`} record={record} />)}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Row({ record }: { record: AuditRecord }) {
  const text = (name: string): string => (record[name] === undefined ? "" : String(record[name]));
  const isBad = Number(record["status"]) >= 400 || record["fault"] !== undefined;
  return (
    <tr class={isBad ? "bad-row" : ""}>
      <td class="tabular">{record.time === undefined ? "" : clock(record.time, true)}</td>
      <td>{record.event}</td>
      <td>{text("tenant").slice(0, 16)}</td>
      <td>{text("sandbox") !== "" && <code title={text("sandbox")}>{text("sandbox").slice(0, 8)}</code>}</td>
      <td>{summaryOf(record, text)}</td>
    </tr>
  );
}

function summaryOf(record: AuditRecord, text: (name: string) => string): string {
  const duration = typeof record["duration"] === "number" ? seconds(record["duration"]) : "";
  if (record.event === "request") return [text("method"), text("route"), text("status"), duration, text("client")].filter(Boolean).join(" · ");
  if (record.event === "run.ended") return [text("language"), text("outcome"), text("exit_code") && `exit ${text("exit_code")}`, text("error"), duration].filter(Boolean).join(" · ");
  if (record.event === "denial") return [text("kind"), text("what"), text("rule")].filter(Boolean).join(" · ");
  const rest = Object.entries(record).filter(([name, value]) => !OWN_COLUMNS.includes(name) && typeof value !== "object");
  return rest.map(([name, value]) => `${name} ${String(value)}`).join(" · ").slice(0, 300);
}

// What this host can enforce, proved by trying.

import { useState } from "preact/hooks";
import type { DoctorRow, Report } from "../api/types";
import { useLoaded } from "../api/use";
import { nameOf } from "../editor/languages";
import { IconCheck, IconCopy, IconReload } from "../ui/icons";
import { Failure, Skeleton } from "../ui/states";

export function Doctor() {
  const { data, error, isLoading, reload } = useLoaded<Report>("/v1/doctor");
  const languages = data?.rows.filter((row) => row.name.startsWith("language ")) ?? [];
  const protections = data?.rows.filter((row) => !row.name.startsWith("language ")) ?? [];
  return (
    <section class="view doctor" aria-labelledby="doctor-title">
      <header class="view-head">
        <div>
          <h1 id="doctor-title">Doctor</h1>
          <p class="note">Each line is an attack on our own cage, carried out on this machine just now.</p>
        </div>
        <button onClick={reload} disabled={isLoading}>
          <IconReload /> {isLoading ? "Examining…" : "Examine again"}
        </button>
      </header>
      {error != null && <Failure error={error} onRetry={reload} />}
      {data === null && error == null && <Skeleton rows={10} />}
      {data !== null && (
        <>
          <Summary report={data} protections={protections} languages={languages} />
          <Rows title="Protections" rows={protections} />
          <Rows title="Languages" rows={languages} />
        </>
      )}
    </section>
  );
}

function Summary({ report, protections, languages }: { report: Report; protections: DoctorRow[]; languages: DoctorRow[] }) {
  const count = (rows: DoctorRow[]) => rows.filter((row) => row.status === "works").length;
  return (
    <div class={`summary ${report.default_available ? "good" : "bad"}`}>
      <strong>{report.default_available ? "The cage holds on this host." : "The default cage does not work on this host."}</strong>
      <span>{count(protections)} of {protections.length} protections work</span>
      <span>{count(languages)} of {languages.length} languages</span>
    </div>
  );
}

const TONES: Record<string, string> = { works: "good", weaker: "warn", missing: "bad" };

function Rows({ title, rows }: { title: string; rows: DoctorRow[] }) {
  return (
    <section class="card table-card" aria-label={title}>
      <table class="rows">
        <caption>{title}</caption>
        <thead class="visually-hidden">
          <tr><th scope="col">Name</th><th scope="col">Status</th><th scope="col">Mechanism and proof</th></tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.name}>
              <th scope="row">{row.name.startsWith("language ") ? nameOf(row.name.slice(9)) : row.name}</th>
              <td><span class={`pill ${TONES[row.status] ?? "warn"}`}><span class="dot" aria-hidden="true" />{row.status}</span></td>
              <td>
                <span class="mechanism">{row.mechanism}</span>
                <span class="note">{row.proof}</span>
                {row.remedy && <Remedy text={row.remedy} />}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Remedy({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <span class="remedy">
      <code>{text}</code>
      <button class="quiet icon" aria-label="Copy the remedy" onClick={() => void copy()}>{isCopied ? <IconCheck /> : <IconCopy />}</button>
    </span>
  );
}

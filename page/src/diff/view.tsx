// The changed lines of one file, with the numbers that they had and have.

import { useMemo } from "preact/hooks";
import { hunksOf, rowsBetween, type Row } from "./lines";

const MOST_ROWS = 4000;
const SIGNS = { same: " ", removed: "−", added: "+" };
const WORDS = { same: "", removed: "removed: ", added: "added: " };

export function DiffView({ path, before, after }: { path: string; before: string; after: string }) {
  const rows = useMemo(() => rowsBetween(before, after), [before, after]);
  const hunks = hunksOf(rows);
  const count = (kind: Row["kind"]) => rows.filter((row) => row.kind === kind).length;
  let left = MOST_ROWS;
  return (
    <div class="diff" role="region" aria-label={`Changed lines of ${path}`} tabIndex={0}>
      <p class="diff-sum">
        <span class="added">+{count("added")}</span> <span class="removed">−{count("removed")}</span>
        <span class="note">{hunks.length === 0 ? "No line differs." : hunks.length === 1 ? "one place" : `${hunks.length} places`}</span>
      </p>
      {hunks.map((hunk, index) => (
        <table key={index}>
          <tbody>
            {hunk.rows.slice(0, Math.max(0, left)).map((row) => (left--, <Line row={row} />))}
          </tbody>
        </table>
      ))}
      {left <= 0 && <p class="note tree-empty">More has changed than is shown here; download the file.</p>}
    </div>
  );
}

function Line({ row }: { row: Row }) {
  return (
    <tr class={row.kind}>
      <td class="line-number">{row.before ?? ""}</td>
      <td class="line-number">{row.after ?? ""}</td>
      <td class="sign" aria-hidden="true">{SIGNS[row.kind]}</td>
      <td class="code"><span class="visually-hidden">{WORDS[row.kind]}</span>{row.text || " "}</td>
    </tr>
  );
}

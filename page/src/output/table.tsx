// A table of texts; columns of numbers are set flush right.

export function DataTable({ head, rows, note }: { head: string[]; rows: string[][]; note: string }) {
  const isNumeric = head.map((_, column) => rows.length > 0 && rows.every((row) => /^\s*(-?[\d.,]+(e[-+]?\d+)?%?)?\s*$/i.test(row[column] ?? "")));
  return (
    <div class="data-table" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>{head.map((cell, column) => <th scope="col" class={isNumeric[column] ? "number" : ""}>{cell}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr>{head.map((_, column) => <td class={isNumeric[column] ? "number" : ""}>{row[column] ?? ""}</td>)}</tr>
          ))}
        </tbody>
      </table>
      {note && <p class="note">{note}</p>}
    </div>
  );
}

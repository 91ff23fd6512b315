// Comma- and tab-separated values as rows of texts.

export function rowsOf(text: string, separator: "," | "\t", most: number): { rows: string[][]; isCut: boolean } {
  const rows: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let isQuoted = false;
  for (let index = 0; index < text.length; index++) {
    const sign = text[index]!;
    if (isQuoted) {
      if (sign !== '"') cell += sign;
      else if (text[index + 1] === '"') (cell += '"'), index++;
      else isQuoted = false;
    } else if (sign === '"' && cell === "") isQuoted = true;
    else if (sign === separator) row.push(cell), (cell = "");
    else if (sign === "\n") {
      rows.push([...row, cell.replace(/\r$/, "")]);
      (row = []), (cell = "");
      if (rows.length > most) return { rows: rows.slice(0, most), isCut: true };
    } else cell += sign;
  }
  if (cell !== "" || row.length > 0) rows.push([...row, cell]);
  return { rows, isCut: false };
}

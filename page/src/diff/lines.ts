// Which lines of a text were removed and which were added: Myers' algorithm over what is between the common beginning
// and the common end. Bounded: of texts that differ too much, all of what is between counts as replaced.

export type Row = { kind: "same" | "removed" | "added"; text: string; before: number | null; after: number | null };
export type Hunk = { rows: Row[] };

const MOST_EDITS = 1500;
const CONTEXT = 3;

export function rowsBetween(before: string, after: string): Row[] {
  const old = linesOf(before);
  const now = linesOf(after);
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
  const kinds = [
    ...Array<Row["kind"]>(head).fill("same"),
    ...edits(old.slice(head, old.length - tail), now.slice(head, now.length - tail)),
    ...Array<Row["kind"]>(tail).fill("same"),
  ];
  let [at, to] = [0, 0];
  return kinds.map((kind) => {
    const [left, right] = [at, to];
    if (kind !== "added") at++;
    if (kind !== "removed") to++;
    return { kind, text: kind === "added" ? now[right]! : old[left]!, before: kind === "added" ? null : left + 1, after: kind === "removed" ? null : right + 1 };
  });
}

/** The last line of a text that ends as texts do is not one more. */
const linesOf = (text: string): string[] => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));

function edits(old: string[], now: string[]): Row["kind"][] {
  const trace: Int32Array[] = [];
  const most = Math.min(old.length + now.length, MOST_EDITS);
  const reach = new Int32Array(2 * most + 2);
  for (let edit = 0; edit <= most; edit++) {
    trace.push(reach.slice());
    for (let k = -edit; k <= edit; k += 2) {
      const isDown = k === -edit || (k !== edit && reach[most + k - 1]! < reach[most + k + 1]!);
      let x = isDown ? reach[most + k + 1]! : reach[most + k - 1]! + 1;
      while (x < old.length && x - k < now.length && old[x] === now[x - k]) x++;
      reach[most + k] = x;
      if (x >= old.length && x - k >= now.length) return walkedBack(trace, most, old.length, now.length);
    }
  }
  return [...Array<Row["kind"]>(old.length).fill("removed"), ...Array<Row["kind"]>(now.length).fill("added")];
}

function walkedBack(trace: Int32Array[], most: number, x: number, y: number): Row["kind"][] {
  const kinds: Row["kind"][] = [];
  for (let edit = trace.length - 1; edit >= 0; edit--) {
    const reach = trace[edit]!;
    const k = x - y;
    const isDown = k === -edit || (k !== edit && reach[most + k - 1]! < reach[most + k + 1]!);
    const fromK = isDown ? k + 1 : k - 1;
    const fromX = edit === 0 ? 0 : reach[most + fromK]!;
    const fromY = edit === 0 ? 0 : fromX - fromK;
    while (x > fromX && y > fromY) kinds.push("same"), x--, y--;
    if (edit > 0) kinds.push(isDown ? "added" : "removed"), ([x, y] = [fromX, fromY]);
  }
  return kinds.reverse();
}

/** What changed, with a few lines around it. */
export function hunksOf(rows: Row[]): Hunk[] {
  const isNear = new Uint8Array(rows.length);
  rows.forEach((row, index) => row.kind !== "same" && isNear.fill(1, Math.max(0, index - CONTEXT), index + CONTEXT + 1));
  const hunks: Hunk[] = [];
  rows.forEach((row, index) => {
    if (!isNear[index]) return;
    if (index === 0 || !isNear[index - 1]) hunks.push({ rows: [] });
    hunks[hunks.length - 1]!.rows.push(row);
  });
  return hunks;
}

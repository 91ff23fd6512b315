// The output of one run as lines, bounded: of a guest that prints without end the first and the last lines stay.
// Lines are kept in blocks, so that new output draws one block again and not the whole log.

import { Ansi, type Line } from "./ansi";

export type Stream = "stdout" | "stderr";
export type LogLine = { number: number; spans: Line; length: number };
export type Block = { number: number; lines: LogLine[]; version: number; length: number };
export type SavedLog = { head: LogLine[]; tail: LogLine[]; dropped: number };

export const BLOCK_LINES = 200;
const HEAD_BLOCKS = 5;
const TAIL_BLOCKS = 20;
/** Of the last lines together: a guest may print long ones. */
const TAIL_LENGTH = 4 << 20;
const LONGEST_LINE = 20_000;
const SAVED_LENGTH = 100_000;

export class Log {
  readonly head: Block[] = [];
  tail: Block[] = [];
  dropped = 0;
  private readonly parsers = { stdout: new Ansi(), stderr: new Ansi() };
  private next = 0;
  private returns = false;
  /** The last line has had its end: what comes next begins another one. */
  private isEnded = false;

  static load(saved: SavedLog): Log {
    const log = new Log();
    for (const line of saved.head) log.append(line, log.head);
    log.dropped = saved.dropped;
    for (const line of saved.tail) log.append(line, saved.dropped > 0 || log.isHeadFull ? log.tail : log.head);
    log.next = (log.last?.number ?? -1) + 1;
    log.isEnded = true;
    return log;
  }

  /** Its first and last lines, small enough for the browser's store. */
  save(): SavedLog {
    const lines = [...this.lines()];
    let end = 0;
    for (let length = 0; end < lines.length && length < SAVED_LENGTH / 4; end++) length += lines[end]!.length + 40;
    let start = lines.length;
    for (let length = 0; start > end && length < SAVED_LENGTH; start--) length += lines[start - 1]!.length + 40;
    return { head: lines.slice(0, end), tail: lines.slice(start), dropped: this.dropped + start - end };
  }

  get isEmpty(): boolean {
    return this.head.length === 0;
  }

  *lines(): Generator<LogLine> {
    for (const block of this.head) yield* block.lines;
    for (const block of this.tail) yield* block.lines;
  }

  add(stream: Stream, text: string): void {
    for (const span of this.parsers[stream].feed(text)) {
      const classes = stream === "stderr" ? `stderr ${span.classes}` : span.classes;
      for (const part of span.text.split(/([\n\r])/)) {
        if (part === "\n") this.begin();
        else if (part === "\r") this.returns = true;
        else if (part !== "") this.write(part, classes);
      }
    }
  }

  /** Lines that the server no longer had. */
  skip(count: number): void {
    this.dropped += count;
  }

  private get isHeadFull(): boolean {
    return this.head.length === HEAD_BLOCKS && this.head[HEAD_BLOCKS - 1]!.lines.length === BLOCK_LINES;
  }

  private get last(): LogLine | undefined {
    return (this.tail.at(-1) ?? this.head.at(-1))?.lines.at(-1);
  }

  private begin(): void {
    if (this.isEmpty || this.isEnded) this.open();
    this.isEnded = true;
    this.returns = false;
  }

  private open(): void {
    this.append({ number: this.next++, spans: [], length: 0 }, this.isHeadFull || this.dropped > 0 ? this.tail : this.head);
    this.bound();
  }

  private append(line: LogLine, blocks: Block[]): void {
    let block = blocks.at(-1);
    if (block === undefined || block.lines.length === BLOCK_LINES) blocks.push((block = { number: line.number, lines: [], version: 0, length: 0 }));
    block.lines.push(line);
    block.length += line.length;
    block.version++;
  }

  private bound(): void {
    let length = this.tail.reduce((sum, block) => sum + block.length, 0);
    while (this.tail.length > 1 && (this.tail.length > TAIL_BLOCKS || length > TAIL_LENGTH)) {
      const gone = this.tail.shift()!;
      length -= gone.length;
      this.dropped += gone.lines.length;
    }
  }

  private write(text: string, classes: string): void {
    if (this.isEmpty || this.isEnded) this.open();
    this.isEnded = false;
    const block = (this.tail.at(-1) ?? this.head.at(-1))!;
    let line = block.lines.at(-1)!;
    if (this.returns) {
      // As progress bars do: the line is written anew. A new object, so that it is drawn anew.
      block.length -= line.length;
      line = { number: line.number, spans: [], length: 0 };
      this.returns = false;
    }
    const shown = text.slice(0, Math.max(0, LONGEST_LINE - line.length));
    block.lines[block.lines.length - 1] = {
      number: line.number,
      spans: shown === "" ? line.spans : [...line.spans, { text: shown, classes }],
      length: line.length + shown.length,
    };
    block.length += shown.length;
    block.version++;
  }
}

export const textOf = (line: LogLine): string => line.spans.map((span) => span.text).join("");

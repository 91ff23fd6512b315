// The output of one run as lines, bounded: of a guest that prints without end the last lines stay.

import { Ansi, type Line } from "./ansi";

export type Stream = "stdout" | "stderr";
export const MOST_LINES = 5000;
const LONGEST_LINE = 20_000;

export class Log {
  lines: { number: number; spans: Line; length: number }[] = [];
  dropped = 0;
  bytes = 0;
  private readonly parsers = { stdout: new Ansi(), stderr: new Ansi() };
  private next = 0;
  private returns = false;

  add(stream: Stream, text: string): void {
    this.bytes += text.length;
    for (const span of this.parsers[stream].feed(text)) {
      const classes = stream === "stderr" ? `stderr ${span.classes}` : span.classes;
      for (const part of span.text.split(/([\n\r])/)) {
        if (part === "\n") this.begin();
        else if (part === "\r") this.returns = true;
        else if (part !== "") this.write(part, classes);
      }
    }
    if (this.lines.length > MOST_LINES) this.dropped += this.lines.splice(0, this.lines.length - MOST_LINES).length;
  }

  private begin(): void {
    if (this.lines.length === 0) this.open();
    this.open();
    this.returns = false;
  }

  private open(): void {
    this.lines.push({ number: this.next++, spans: [], length: 0 });
  }

  private write(text: string, classes: string): void {
    if (this.lines.length === 0) this.open();
    let line = this.lines[this.lines.length - 1]!;
    if (this.returns) {
      // As progress bars do: the line is written anew. A new object, so that it is drawn anew.
      line = { number: line.number, spans: [], length: 0 };
      this.returns = false;
    }
    const shown = text.slice(0, Math.max(0, LONGEST_LINE - line.length));
    this.lines[this.lines.length - 1] = {
      number: line.number,
      spans: shown === "" ? line.spans : [...line.spans, { text: shown, classes }],
      length: line.length + shown.length,
    };
  }
}

// What a terminal would make of a guest's output: colours, bold, overwritten lines. Everything else that an escape can
// ask for (titles, links, the clipboard, answers) is dropped, and nothing is ever more than text with a class.

export type Span = { text: string; classes: string };
export type Line = Span[];

const ESCAPE =
  // CSI; OSC and other strings up to their end, or to the end of what there is; two-character escapes.
  /\x1b\[([0-?]*)([ -/]*)([@-~])|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]|\x1b$/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

type Style = { colour: string; isBright: boolean; marks: Set<string> };

/** Keeps the style from one piece of output to the next. */
export class Ansi {
  private style: Style = { colour: "", isBright: false, marks: new Set() };
  private rest = "";

  /** The spans of a piece of text, with `\n` and `\r` still in it. An escape that is cut off waits for the next piece. */
  feed(piece: string): Span[] {
    let text = this.rest + piece;
    const open = /\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]{0,4096}|[ -/]*)?$/.exec(text);
    this.rest = open === null ? "" : open[0];
    if (open !== null) text = text.slice(0, open.index);
    const spans: Span[] = [];
    let at = 0;
    for (const match of text.matchAll(ESCAPE)) {
      this.add(spans, text.slice(at, match.index));
      if (match[3] === "m") this.select(match[1]!);
      at = match.index + match[0].length;
    }
    this.add(spans, text.slice(at));
    return spans;
  }

  private add(spans: Span[], text: string): void {
    const shown = text.replace(/\r\n/g, "\n").replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/g, "");
    if (shown !== "") spans.push({ text: shown, classes: this.classes() });
  }

  private classes(): string {
    const { colour, isBright, marks } = this.style;
    return [colour && `ansi-${isBright ? "bright-" : ""}${colour}`, ...marks].filter(Boolean).join(" ");
  }

  private select(parameters: string): void {
    const codes = parameters.split(/[;:]/).map(Number);
    for (let index = 0; index < codes.length; index++) {
      const code = codes[index]!;
      if (code === 38 || code === 48) index += codes[index + 1] === 5 ? 2 : 4;
      else this.one(code);
    }
  }

  private one(code: number): void {
    const { style } = this;
    if (code === 0) this.style = { colour: "", isBright: false, marks: new Set() };
    else if (code === 1) style.marks.add("ansi-bold");
    else if (code === 2) style.marks.add("ansi-faint");
    else if (code === 3) style.marks.add("ansi-italic");
    else if (code === 4) style.marks.add("ansi-underline");
    else if (code === 22) style.marks.delete("ansi-bold"), style.marks.delete("ansi-faint");
    else if (code === 23) style.marks.delete("ansi-italic");
    else if (code === 24) style.marks.delete("ansi-underline");
    else if (code === 39) style.colour = "";
    else if (code >= 30 && code <= 37) (style.colour = COLOURS[code - 30]!), (style.isBright = false);
    else if (code >= 90 && code <= 97) (style.colour = COLOURS[code - 90]!), (style.isBright = true);
  }
}

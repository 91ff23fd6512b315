// The screen of a terminal: xterm.js in the page's colours. Loaded when somebody opens one.

import "@xterm/xterm/css/xterm.css";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { theme } from "../ui/theme";
import { openWithAllowedStyles } from "./allowed-styles";

/** The colours of output elsewhere on the page (style/run.css), so that a program looks the same in both. */
const ANSI = { black: "faint", red: "bad", green: "good", yellow: "warn", blue: "code-function", magenta: "code-keyword", cyan: "code-type", white: "text" };
/** What may wait to be drawn. xterm.js keeps all that it is given, and a guest can print without end. */
const MOST_WAITING = 4 << 20;

export type ScreenEvents = { onType: (bytes: Uint8Array<ArrayBuffer>) => void; onSize: (cols: number, rows: number) => void; onLeave: () => void };

export class Screen {
  private readonly terminal: Terminal;
  private readonly fit = new FitAddon();
  private readonly endings: (() => void)[] = [];
  private waiting = 0;

  constructor(private readonly box: HTMLElement, events: ScreenEvents, isReadAloud: boolean) {
    const encoder = new TextEncoder();
    this.terminal = new Terminal({
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
      fontSize: 13,
      lineHeight: 1.25,
      scrollback: 5000,
      screenReaderMode: isReadAloud,
      theme: colours(),
      minimumContrastRatio: 4.5,
      // An address that a guest wrote leads nowhere from here.
      linkHandler: { activate: () => undefined },
    });
    this.terminal.loadAddon(this.fit);
    this.endings.push(openWithAllowedStyles(this.terminal, box));
    this.terminal.onData((text) => events.onType(encoder.encode(text)));
    this.terminal.onBinary((text) => events.onType(Uint8Array.from(text, (sign) => sign.charCodeAt(0))));
    this.terminal.onResize(({ cols, rows }) => events.onSize(cols, rows));
    this.terminal.attachCustomKeyEventHandler((event) => this.isForGuest(event, events));
    const watcher = new ResizeObserver(() => this.fitNow());
    watcher.observe(box);
    this.endings.push(() => watcher.disconnect(), theme.watch(() => (this.terminal.options.theme = colours())));
    this.fitNow();
  }

  /** Ctrl+C copies what is selected; without a selection it is the guest's, as all other keys but one. */
  private isForGuest(event: KeyboardEvent, events: ScreenEvents): boolean {
    if (event.ctrlKey && !event.shiftKey && event.key === "c" && this.terminal.hasSelection()) return false;
    if (!(event.ctrlKey && event.shiftKey && event.key === "L")) return true;
    event.preventDefault();
    if (event.type === "keydown") events.onLeave();
    return false;
  }

  private fitNow(): void {
    if (this.box.clientWidth > 0) this.fit.fit();
  }

  get size(): { cols: number; rows: number } {
    return { cols: this.terminal.cols, rows: this.terminal.rows };
  }

  get isFull(): boolean {
    return this.waiting > MOST_WAITING;
  }

  write(data: Uint8Array): void {
    this.waiting += data.length;
    this.terminal.write(data, () => (this.waiting -= data.length));
  }

  /** When all that was given has been drawn. */
  drawn(): Promise<void> {
    return new Promise((resolve) => this.terminal.write("", resolve));
  }

  clear(): void {
    this.terminal.reset();
  }

  focus(): void {
    this.terminal.focus();
  }

  readAloud(isOn: boolean): void {
    this.terminal.options.screenReaderMode = isOn;
  }

  close(): void {
    for (const end of this.endings) end();
    this.terminal.dispose();
  }
}

function colours(): Record<string, string> {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  const named = Object.entries(ANSI).flatMap(([name, ours]) => [[name, of(ours)], [`bright${name[0]!.toUpperCase()}${name.slice(1)}`, of(ours)]]);
  return {
    background: of("surface"),
    foreground: of("text"),
    cursor: of("accent"),
    cursorAccent: of("surface"),
    selectionBackground: of("selection"),
    ...Object.fromEntries(named),
  };
}

// The WebSocket to a process with a terminal: bytes go both ways, texts are about them. It is opened again until the
// process has ended or is not there any more; what the server kept of the output comes first each time.

import { get, Refusal } from "../api/client";
import { token } from "../api/token";
import type { Process } from "../api/types";
import type { Screen } from "./screen";

export type Link = { state: "connecting" | "connected" | "reconnecting" | "ended"; note: string };

const isGone = (error: unknown): boolean => error instanceof Refusal && error.status === 404;

export class TerminalConnection {
  private socket: WebSocket | null = null;
  private isOver = false;
  private note = "";

  constructor(private readonly at: string, private readonly screen: Screen, private readonly tell: (link: Link) => void) {}

  async follow(): Promise<void> {
    this.tell({ state: "connecting", note: "" });
    for (let wait = 300; !this.isOver; wait = Math.min(wait * 1.6, 4000)) {
      if (await this.once()) wait = 300;
      if (this.isOver) break;
      this.tell({ state: "reconnecting", note: this.note });
      await new Promise((resolve) => setTimeout(resolve, wait));
      await get<Process>(this.at).catch((error: unknown) => {
        if (isGone(error)) this.end("It went away with what it ran in.");
      });
    }
  }

  /** One connection, from its beginning to its end. Whether there was one. */
  private once(): Promise<boolean> {
    const socket = (this.socket = new WebSocket(addressOf(this.at), protocols()));
    socket.binaryType = "arraybuffer";
    let wasOpen = false;
    socket.onopen = () => {
      wasOpen = true;
      this.screen.clear();
      this.resize();
      this.tell({ state: "connected", note: this.note });
    };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.hear(JSON.parse(data));
      else this.screen.write(new Uint8Array(data, 1));
      if (!this.screen.isFull) return;
      this.note = "Some output was left out: it came faster than it can be shown.";
      socket.close();
    };
    return new Promise((resolve) => {
      socket.onclose = () => void this.screen.drawn().then(() => resolve(wasOpen));
    });
  }

  private hear(said: { type: string; exit_code?: number; status?: string; error?: { message: string } }): void {
    if (said.type === "result") this.end(said.exit_code === undefined ? `It ended: ${said.status}.` : `The shell has ended with exit code ${said.exit_code}.`);
    else if (said.type === "error" || said.type === "refused") this.note = said.error?.message ?? "";
  }

  private end(note: string): void {
    if (this.isOver) return;
    this.isOver = true;
    this.tell({ state: "ended", note });
  }

  private send(what: string | Uint8Array<ArrayBuffer>): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(what);
  }

  type(bytes: Uint8Array<ArrayBuffer>): void {
    this.send(bytes);
  }

  resize(): void {
    this.send(JSON.stringify({ type: "resize", ...this.screen.size }));
  }

  /** The process goes on; whoever comes again finds it. */
  close(): void {
    this.isOver = true;
    this.socket?.close();
  }
}

const addressOf = (at: string): string => `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${at}/ws`;

/** A browser sends no header with a WebSocket: the token is one of the names that it offers. */
function protocols(): string[] {
  const held = token();
  if (held === null) return ["warmcell"];
  const encoded = btoa(String.fromCharCode(...new TextEncoder().encode(held)));
  return ["warmcell", `warmcell.bearer.${encoded.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")}`];
}

// A shell in the sandbox, on a terminal of its own. It goes on while nobody looks, and is found again by its pid.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, get, post } from "../../api/client";
import type { Process } from "../../api/types";
import { Failure, Skeleton } from "../../ui/states";
import { IconPlus, IconSpeaker } from "../../ui/icons";
import type { Link, TerminalConnection } from "../../terminal/connection";
import type { Screen } from "../../terminal/screen";

export const SHELL = "command -v bash >/dev/null && exec bash; exec sh";
const READ_ALOUD = "warmcell.terminal.read-aloud";
const TONES = { connecting: "busy", connected: "good", reconnecting: "warn", ended: "" };
const NAMES = { connecting: "Connecting", connected: "Connected", reconnecting: "Reconnecting", ended: "Ended" };

/** The shell that was opened here before, where it still runs; otherwise a new one. */
async function shellIn(at: string, size: { cols: number; rows: number }, isNew: boolean): Promise<number> {
  const key = `warmcell.terminal.${at}`;
  const held = sessionStorage.getItem(key);
  if (held !== null) {
    const found = await get<Process>(`${at}/processes/${held}`).catch(() => null);
    if (found?.is_running && !isNew) return found.pid;
    if (found?.is_running) await ask(`${at}/processes/${held}`, { method: "DELETE" }).catch(() => undefined);
  }
  const made = await post<Process>(`${at}/processes`, { command: SHELL, pty: size, env: { TERM: "xterm-256color" } });
  sessionStorage.setItem(key, String(made.pid));
  return made.pid;
}

export function TerminalView({ at, isShown }: { at: string; isShown: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLButtonElement>(null);
  const held = useRef<{ screen: Screen | null; connection: TerminalConnection | null }>({ screen: null, connection: null });
  const [turn, setTurn] = useState(0);
  const [link, setLink] = useState<Link>({ state: "connecting", note: "" });
  const [failure, setFailure] = useState<unknown>(null);
  const [isLoaded, setLoaded] = useState(false);
  const [isReadAloud, setReadAloud] = useState(localStorage.getItem(READ_ALOUD) === "yes");

  useEffect(() => {
    let isOver = false;
    const open = async () => {
      const [{ Screen }, { TerminalConnection }] = await Promise.all([import("../../terminal/screen"), import("../../terminal/connection")]);
      if (isOver) return;
      setLoaded(true);
      const screen = (held.current.screen = new Screen(box.current!, {
        onType: (bytes) => held.current.connection?.type(bytes),
        onSize: () => held.current.connection?.resize(),
        onLeave: () => leave.current?.focus(),
      }, isReadAloud));
      const pid = await shellIn(at, screen.size, turn > 0);
      if (isOver) return;
      screen.focus();
      await (held.current.connection = new TerminalConnection(`${at}/processes/${pid}`, screen, setLink)).follow();
    };
    setFailure(null);
    open().catch(setFailure);
    return () => {
      isOver = true;
      held.current.connection?.close();
      held.current.screen?.close();
      held.current = { screen: null, connection: null };
    };
  }, [at, turn]);
  useEffect(() => {
    if (isShown) held.current.screen?.focus();
  }, [isShown]);
  const toggle = () => {
    localStorage.setItem(READ_ALOUD, isReadAloud ? "no" : "yes");
    held.current.screen?.readAloud(!isReadAloud);
    setReadAloud(!isReadAloud);
  };
  return (
    <div class="terminal-view">
      <div class="toolbar">
        <span class={`pill ${TONES[link.state]}`} role="status">
          {link.state === "connecting" || link.state === "reconnecting" ? <span class="spinner" aria-hidden="true" /> : <span class="dot" aria-hidden="true" />}
          {NAMES[link.state]}
        </span>
        <span class={`note ${link.note === "" ? "hint" : ""}`} aria-live="polite">{link.note || <>Everything typed goes to the shell; <kbd>Ctrl Shift L</kbd> leaves it.</>}</span>
        <span class="grow" />
        <button class="quiet" aria-label="Screen reader" aria-pressed={isReadAloud} onClick={toggle}><IconSpeaker /> <span>Screen reader</span></button>
        <button ref={leave} onClick={() => setTurn(turn + 1)}><IconPlus /> New shell</button>
      </div>
      {failure != null && <Failure error={failure} onRetry={() => setTurn(turn + 1)} />}
      <div class={`card screen ${link.state}`}>
        {!isLoaded && failure == null && <Skeleton rows={4} />}
        <div class="screen-box" ref={box} />
      </div>
    </div>
  );
}

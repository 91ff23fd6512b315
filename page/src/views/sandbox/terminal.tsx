// Shells in the sandbox, each with a name and a terminal of its own. They go on while nobody looks. The server's list of
// processes says which there are, so that another tab, or this one after a reload, finds them.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, get, post } from "../../api/client";
import type { Process } from "../../api/types";
import { Failure, Skeleton } from "../../ui/states";
import { IconPlus, IconSpeaker, IconTrash } from "../../ui/icons";
import type { Link, TerminalConnection } from "../../terminal/connection";
import type { Screen } from "../../terminal/screen";

const SHELL = "command -v bash >/dev/null && exec bash; exec sh # ";
const READ_ALOUD = "warmcell.terminal.read-aloud";
const TONES = { connecting: "busy", connected: "good", reconnecting: "warn", ended: "" };
const NAMES = { connecting: "Connecting", connected: "Connected", reconnecting: "Reconnecting", ended: "Ended" };
type Shell = { pid: number; name: string };

/** The name of a shell that was opened here, or null for any other process. It is the comment at the end of its command. */
export const shellName = (command: string): string | null => (command.startsWith(SHELL) ? command.slice(SHELL.length) : null);

async function shellsIn(at: string): Promise<Shell[]> {
  const running = (await get<Process[]>(`${at}/processes`)).filter((process) => process.is_running);
  return running.flatMap((process) => {
    const name = shellName(process.command);
    return name === null ? [] : [{ pid: process.pid, name }];
  });
}

async function newShell(at: string, others: Shell[]): Promise<Shell> {
  const numbers = others.map((shell) => Number(/\d+$/.exec(shell.name)?.[0] ?? 0));
  const name = `Shell ${Math.max(0, ...numbers) + 1}`;
  const made = await post<Process>(`${at}/processes`, { command: SHELL + name, pty: { cols: 80, rows: 24 }, env: { TERM: "xterm-256color" } });
  return { pid: made.pid, name };
}

export function TerminalView({ at, isShown }: { at: string; isShown: boolean }) {
  const [shells, setShells] = useState<Shell[] | null>(null);
  const [chosen, setChosen] = useState<number | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const load = async (isNew: boolean) => {
    setFailure(null);
    const found = await shellsIn(at);
    const all = isNew || found.length === 0 ? [...found, await newShell(at, found)] : found;
    setShells(all);
    const held = Number(sessionStorage.getItem(`warmcell.terminal.${at}`));
    choose(all.find((shell) => !isNew && shell.pid === held)?.pid ?? all.at(-1)!.pid);
  };
  const choose = (pid: number) => (sessionStorage.setItem(`warmcell.terminal.${at}`, String(pid)), setChosen(pid));
  const end = async (pid: number) => {
    await ask(`${at}/processes/${pid}`, { method: "DELETE" }).catch(setFailure);
    await load(false).catch(setFailure);
  };
  useEffect(() => void load(false).catch(setFailure), [at]);
  return (
    <div class="terminal-view">
      <div class="shells">
        <div class="segments" role="group" aria-label="Shells">
          {shells?.map((shell) => <button key={shell.pid} aria-pressed={chosen === shell.pid} onClick={() => choose(shell.pid)}>{shell.name}</button>)}
        </div>
        <button class="quiet" aria-label="New shell" onClick={() => void load(true).catch(setFailure)}><IconPlus /> <span>New shell</span></button>
        <span class="grow" />
        {chosen !== null && <button class="quiet icon" aria-label={`End ${shells?.find((shell) => shell.pid === chosen)?.name ?? "the shell"}`} onClick={() => void end(chosen)}><IconTrash /></button>}
      </div>
      {failure != null && <Failure error={failure} onRetry={() => void load(false).catch(setFailure)} />}
      {chosen !== null && <ShellScreen key={chosen} at={`${at}/processes/${chosen}`} isShown={isShown} />}
      {shells === null && failure == null && <Skeleton rows={4} />}
    </div>
  );
}

function ShellScreen({ at, isShown }: { at: string; isShown: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLButtonElement>(null);
  const held = useRef<{ screen: Screen | null; connection: TerminalConnection | null }>({ screen: null, connection: null });
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
      screen.focus();
      await (held.current.connection = new TerminalConnection(at, screen, setLink)).follow();
    };
    setFailure(null);
    open().catch(setFailure);
    return () => {
      isOver = true;
      held.current.connection?.close();
      held.current.screen?.close();
      held.current = { screen: null, connection: null };
    };
  }, [at]);
  useEffect(() => {
    if (isShown) held.current.screen?.focus();
  }, [isShown]);
  const toggle = () => {
    localStorage.setItem(READ_ALOUD, isReadAloud ? "no" : "yes");
    held.current.screen?.readAloud(!isReadAloud);
    setReadAloud(!isReadAloud);
  };
  return (
    <>
      <div class="toolbar">
        <span class={`pill ${TONES[link.state]}`} role="status">
          {link.state === "connecting" || link.state === "reconnecting" ? <span class="spinner" aria-hidden="true" /> : <span class="dot" aria-hidden="true" />}
          {NAMES[link.state]}
        </span>
        <span class={`note ${link.note === "" ? "hint" : ""}`} aria-live="polite">{link.note || <>Everything typed goes to the shell; <kbd>Ctrl Shift L</kbd> leaves it.</>}</span>
        <span class="grow" />
        <button ref={leave} class="quiet" aria-label="Screen reader" aria-pressed={isReadAloud} onClick={toggle}><IconSpeaker /> <span>Screen reader</span></button>
      </div>
      {failure != null && <Failure error={failure} />}
      <div class={`card screen ${link.state}`}>
        {!isLoaded && failure == null && <Skeleton rows={4} />}
        <div class="screen-box" ref={box} />
      </div>
    </>
  );
}

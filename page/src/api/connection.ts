// Whether the server answers. Views read `connection` and load anew whenever `epoch` grows.

import { Store } from "./store";

export type Connection = { state: "online" | "offline" | "signed-out"; epoch: number; message: string };

export const connection = new Store<Connection>({ state: "online", epoch: 0, message: "" });

let isProbing = false;

export function lost(): void {
  if (connection.value.state === "signed-out") return;
  connection.set({ ...connection.value, state: "offline" });
  if (!isProbing) void probe();
}

export function refused(message: string): void {
  connection.set({ ...connection.value, state: "signed-out", message });
}

export function back(): void {
  connection.set({ state: "online", epoch: connection.value.epoch + 1, message: "" });
}

/** Resolves when the server answers, but not at once: what failed just now is not tried again without a pause. */
export async function untilOnline(signal: AbortSignal): Promise<void> {
  do await new Promise((resolve) => setTimeout(resolve, 500));
  while (connection.value.state !== "online" && !signal.aborted);
  signal.throwIfAborted();
}

const BEAT = 8000;
let lastAnswer = 0;
/** Called with every answer, so that a busy page needs no other sign of life. */
export const answered = (): void => void (lastAnswer = Date.now());

/** Notices a server that has gone while no view asks it anything. */
export function watchServer(): void {
  setInterval(() => {
    const isNeeded = connection.value.state === "online" && document.visibilityState === "visible" && Date.now() - lastAnswer > BEAT;
    if (isNeeded) fetch("/healthz", { cache: "no-store" }).catch(lost);
  }, BEAT / 2);
}

async function probe(): Promise<void> {
  isProbing = true;
  for (let wait = 400; connection.value.state === "offline"; wait = Math.min(wait * 1.5, 4000)) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
    if (answer?.ok && connection.value.state === "offline") back();
  }
  isProbing = false;
}

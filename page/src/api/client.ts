// Requests to /v1. What is no success is thrown as a `Refusal`, with what the server said and advised.

import { answered, lost, refused, untilOnline } from "./connection";
import { eventsOf, type ServerEvent } from "./events";
import { token } from "./token";

export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string | null = null,
  ) {
    super(message);
  }
}

export type Options = { method?: string; json?: unknown; body?: BodyInit; signal?: AbortSignal; accept?: string };

export async function ask(path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: options.accept ?? "application/json" };
  const held = token();
  if (held !== null) headers["Authorization"] = `Bearer ${held}`;
  if (options.json !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method: options.method ?? (options.json === undefined ? "GET" : "POST"),
    headers,
    body: options.json === undefined ? options.body : JSON.stringify(options.json),
    signal: options.signal,
    cache: "no-store",
    credentials: "omit",
  }).catch((error: unknown) => {
    if (options.signal?.aborted) throw error;
    lost();
    throw new Refusal(0, "The server does not answer.", "It is tried again until it does.");
  });
  answered();
  if (!answer.ok) throw await refusalOf(answer);
  return answer;
}

/** Sends a file and says how much of it has gone, from 0 to 1: `fetch` cannot. */
export function send(path: string, file: Blob, onProgress: (share: number) => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", path);
    const held = token();
    if (held !== null) request.setRequestHeader("Authorization", `Bearer ${held}`);
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onload = () => (request.status < 300 ? resolve() : void refusalOf(new Response(request.responseText, { status: request.status })).then(reject));
    request.onerror = () => (lost(), reject(new Refusal(0, "The connection was lost while the file was sent.", "Send it again.")));
    request.send(file);
  });
}

async function refusalOf(answer: Response): Promise<Refusal> {
  const said = await answer.json().catch(() => null);
  const message = typeof said?.error?.message === "string" ? said.error.message : `The server said ${answer.status}.`;
  if (answer.status === 401) refused(message);
  return new Refusal(answer.status, message, said?.error?.hint ?? null);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, { signal })).json();
}

export async function post<T>(path: string, json: unknown, signal?: AbortSignal): Promise<T> {
  const answer = await ask(path, { json, signal });
  return answer.status === 204 ? (undefined as T) : answer.json();
}

/** Server-sent events of a request. Ends with the stream; one that breaks off in the middle is a `Refusal`. */
export async function* stream(path: string, options: Options): AsyncGenerator<ServerEvent> {
  const answer = await ask(path, { ...options, accept: "text/event-stream" });
  try {
    yield* eventsOf(answer.body!);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    lost();
    throw new Refusal(0, "The connection to the server was lost.", "What was under way has ended with it.");
  }
}

/** The events of something that the server runs in the background, until its `result` or `error`. After a lost
 * connection it goes on with the event after the last one, once the server is back. */
export async function* follow(path: string, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  for (let last = ""; ; ) {
    try {
      for await (const event of stream(last === "" ? path : `${path}?from=${last}`, { signal })) {
        if (event.id !== "") last = event.id;
        yield event;
        if (event.name === "result" || event.name === "error") return;
      }
    } catch (error) {
      if (signal.aborted || !(error instanceof Refusal) || (error.status !== 0 && error.status !== 503)) throw error;
    }
    await untilOnline(signal);
  }
}

export const words = (error: unknown): string => (error instanceof Error ? error.message : String(error));
export const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";

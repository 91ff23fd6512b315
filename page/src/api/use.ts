// Data that a view shows: loading, there, or refused; loaded anew when the server has come back.

import { useCallback, useEffect, useState } from "preact/hooks";
import { get, isAbort } from "./client";
import { connection } from "./connection";
import { useStore } from "./store";

export type Loaded<T> = { data: T | null; error: unknown; isLoading: boolean; reload: () => void };

export function useLoaded<T>(path: string | null): Loaded<T> {
  const { epoch, state } = useStore(connection);
  const [turn, setTurn] = useState(0);
  const [held, setHeld] = useState<{ path: string | null; data: T | null; error: unknown; isLoading: boolean }>({
    path,
    data: null,
    error: null,
    isLoading: true,
  });
  useEffect(() => {
    if (path === null || state === "signed-out") return;
    const stop = new AbortController();
    setHeld((before) => ({ path, data: before.path === path ? before.data : null, error: null, isLoading: true }));
    get<T>(path, stop.signal).then(
      (data) => setHeld({ path, data, error: null, isLoading: false }),
      (error: unknown) => {
        if (!isAbort(error)) setHeld((before) => ({ ...before, path, error, isLoading: false }));
      },
    );
    return () => stop.abort();
  }, [path, epoch, turn, state === "signed-out"]);
  return { ...held, reload: useCallback(() => setTurn((before) => before + 1), []) };
}

// The server's history, kept up to date while somebody looks. Bounded as the server's is.

import { useEffect, useState } from "preact/hooks";
import { isAbort, stream } from "../api/client";
import { connection } from "../api/connection";
import { useStore } from "../api/store";
import type { History, Step } from "../api/types";

const MOST_STEPS = 360;

export function merged(held: Step[], news: Step[]): Step[] {
  const first = news[0]?.time ?? Infinity;
  return [...held.filter((step) => step.time < first), ...news].slice(-MOST_STEPS);
}

export function useHistory(): { history: History | null; error: unknown } {
  const { epoch } = useStore(connection);
  const [history, setHistory] = useState<History | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const follow = async () => {
      let began = 0;
      for await (const { data } of stream("/v1/history", { signal: stop.signal })) {
        const news = data as History;
        // Another server has another past.
        setHistory((held) => (held === null || began !== news.began ? news : { ...news, steps: merged(held.steps, news.steps) }));
        began = news.began;
        setError(null);
      }
      // A server that is about to end says so by ending the stream: ask again, which finds out.
      setTimeout(() => !stop.signal.aborted && setTurn((before) => before + 1), 500);
    };
    follow().catch((failure: unknown) => isAbort(failure) || setError(failure));
    return () => stop.abort();
  }, [epoch, turn]);
  return { history, error };
}

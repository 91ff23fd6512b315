// Follows the changes of files in a sandbox. Where the server has no watch left, it is asked every few seconds instead.

import { useEffect } from "preact/hooks";
import { isAbort, stream } from "../../api/client";
import { untilOnline } from "../../api/connection";

const GATHER = 200;
const POLL = 5000;

/** Calls `onChange` a few times a second at most, with the paths of files that have other content now. */
export function useWatch(at: string, onChange: (paths: string[]) => void): void {
  useEffect(() => {
    const stop = new AbortController();
    let paths: string[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const tell = (path?: string) => {
      if (path !== undefined) paths.push(path);
      timer ??= setTimeout(() => {
        timer = undefined;
        onChange(paths);
        paths = [];
      }, GATHER);
    };
    const watch = async () => {
      while (!stop.signal.aborted) {
        try {
          for await (const { name, data } of stream(`${at}/watch?recursive=true`, { signal: stop.signal })) tell(name === "file" && data.kind !== "deleted" ? data.path : undefined);
        } catch (error) {
          if (isAbort(error)) return;
          tell();
          await new Promise((resolve) => setTimeout(resolve, POLL));
        }
        await untilOnline(stop.signal);
      }
    };
    watch().catch(() => undefined); // ended by the component
    return () => (stop.abort(), clearTimeout(timer));
  }, [at]);
}

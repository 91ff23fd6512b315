// The output of a run: drawn at most once per frame, and kept at its end unless somebody has scrolled up.

import { memo } from "./memo";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { MOST_LINES, type Log } from "./log";
import type { Line } from "./ansi";

const LineOf = memo(function LineOf({ spans }: { spans: Line }) {
  return (
    <div class="line">
      {spans.length === 0 ? "\n" : spans.map((span) => (span.classes ? <span class={span.classes}>{span.text}</span> : span.text))}
    </div>
  );
});

export function Terminal({ log, version, label }: { log: Log; version: number; label: string }) {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    const element = box.current!;
    if (isAtEnd.current) element.scrollTop = element.scrollHeight;
  }, [version]);
  useEffect(() => {
    if (log.bytes === 0) isAtEnd.current = true;
  }, [log]);
  const last = log.lines[log.lines.length - 1];
  const lines = last !== undefined && last.spans.length === 0 ? log.lines.slice(0, -1) : log.lines;
  return (
    <div
      class="terminal"
      ref={box}
      role="log"
      aria-label={label}
      aria-live="polite"
      tabIndex={0}
      onScroll={(event) => {
        const element = event.currentTarget;
        isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
      }}
    >
      {log.dropped > 0 && (
        <div class="line dropped">
          {log.dropped.toLocaleString()} earlier lines are not shown; the last {MOST_LINES.toLocaleString()} are.
        </div>
      )}
      {lines.map((line) => (
        <LineOf key={line.number} spans={line.spans} />
      ))}
    </div>
  );
}

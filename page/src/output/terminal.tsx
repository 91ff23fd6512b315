// The output of a run: drawn in blocks, kept at its end unless somebody has scrolled up, and searched by line.

import { memo } from "./memo";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { IconDown, IconSearch, IconUp } from "../ui/icons";
import { textOf, type Block, type Log, type LogLine } from "./log";

/** Shorter output is looked through faster than a search is typed. */
const LINES_TO_SEARCH = 30;

const LineView = memo(function LineView({ line, mark }: { line: LogLine; mark: string }) {
  return (
    <div class={`line ${mark}`} data-line={mark === "" ? undefined : line.number}>
      {line.spans.length === 0 ? "\n" : line.spans.map((span) => (span.classes ? <span class={span.classes}>{span.text}</span> : span.text))}
    </div>
  );
});

type BlockProps = { block: Block; version: number; asked: string; current: number };

const BlockView = memo(function BlockView({ block, asked, current }: BlockProps) {
  const mark = (line: LogLine): string => (asked === "" || !matches(line, asked) ? "" : line.number === current ? "found current" : "found");
  return <div class="block">{block.lines.map((line) => <LineView key={line.number} line={line} mark={mark(line)} />)}</div>;
});

const matches = (line: LogLine, asked: string): boolean => textOf(line).toLowerCase().includes(asked);

export function Terminal({ log, version, label }: { log: Log; version: number; label: string }) {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const asked = typed.toLowerCase();
  const found = useMemo(() => (asked === "" ? [] : [...log.lines()].filter((line) => matches(line, asked)).map((line) => line.number)), [asked, log, version]);
  const current = found.length === 0 ? -1 : found[at % found.length]!;
  useLayoutEffect(() => {
    const element = box.current!;
    if (isAtEnd.current && asked === "") element.scrollTop = element.scrollHeight;
  }, [version, log]);
  useLayoutEffect(() => {
    if (current !== -1) box.current!.querySelector(`[data-line="${current}"]`)?.scrollIntoView({ block: "center" });
  }, [current, asked]);
  const isLong = log.tail.length > 0 || (log.head[0]?.lines.length ?? 0) > LINES_TO_SEARCH;
  const jump = (isStart: boolean) => {
    isAtEnd.current = !isStart;
    box.current!.scrollTop = isStart ? 0 : box.current!.scrollHeight;
  };
  const show = (block: Block) => <BlockView key={block.number} block={block} version={block.version} asked={asked} current={block.lines[0]!.number <= current && current <= block.lines.at(-1)!.number ? current : -1} />;
  return (
    <div class="log">
      {isLong && (
        <div class="log-tools">
          <label class="log-search">
            <IconSearch />
            <input
              aria-label="Search the output"
              placeholder="Search"
              value={typed}
              onInput={(event) => (setTyped(event.currentTarget.value), setAt(0))}
              onKeyDown={(event) => event.key === "Enter" && (event.preventDefault(), found.length > 0 && setAt((at + (event.shiftKey ? found.length - 1 : 1)) % found.length))}
            />
          </label>
          <span class="note" role="status">{asked === "" ? "" : found.length === 0 ? "not found" : `${(at % found.length) + 1} of ${found.length} lines`}</span>
          <span class="grow" />
          <button class="quiet icon" aria-label="Go to the start of the output" title="Start" onClick={() => jump(true)}><IconUp /></button>
          <button class="quiet icon" aria-label="Go to the end of the output" title="End" onClick={() => jump(false)}><IconDown /></button>
        </div>
      )}
      <div
        class="terminal"
        ref={box}
        role="log"
        aria-label={label}
        aria-live={isLong ? "off" : "polite"}
        tabIndex={0}
        onScroll={(event) => {
          const element = event.currentTarget;
          isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
        }}
      >
        {log.head.map(show)}
        {log.dropped > 0 && <div class="line dropped">{log.dropped.toLocaleString()} lines in between are not shown.</div>}
        {log.tail.map(show)}
      </div>
    </div>
  );
}

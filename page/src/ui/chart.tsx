// A small chart over time: lines, or bars on top of each other. Drawn as SVG, told in words, readable with the keys.

import { useEffect, useRef, useState } from "preact/hooks";
import { clock } from "./figures";

export type Series = { name: string; tone: string; values: (number | null)[] };

type Props = {
  title: string;
  unit: string;
  times: number[];
  first: number;
  last: number;
  step: number;
  series: Series[];
  format: (value: number) => string;
  isStacked?: boolean;
  isWhole?: boolean;
  isBinary?: boolean;
};

const HEIGHT = 150;
const LEFT = 8;
const TOP = 14;

export function Chart(props: Props) {
  const { title, unit, times, first, last, step, series, format } = props;
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const [pointed, setPointed] = useState<number | null>(null);
  const drawn = props.isStacked ? stacked(series) : series;
  const top = ceiling(Math.max(0, ...drawn.flatMap((one) => one.values.map((value) => value ?? 0))), props);
  const x = (time: number) => LEFT + ((time - first) / Math.max(step, last - first)) * (width - 2 * LEFT);
  const y = (value: number) => TOP + (1 - value / top) * (HEIGHT - TOP);
  const at = pointed === null ? null : Math.min(pointed, times.length - 1);
  const point = (clientX: number) => {
    const left = box.current!.getBoundingClientRect().left;
    const time = first + ((clientX - left - LEFT) / (width - 2 * LEFT)) * (last - first);
    const offset = Math.round((time - (times[0] ?? first)) / step);
    setPointed(Math.max(0, Math.min(times.length - 1, offset)));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -1e6, End: 1e6 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    setPointed(Math.max(0, Math.min(times.length - 1, (at ?? times.length - 1) + move)));
  };
  const shown = at ?? times.length - 1;
  const said = series.map((one) => `${one.name} ${one.values[shown] == null ? "none" : format(one.values[shown]!)}`).join(", ");
  return (
    <figure class="card chart">
      <figcaption>
        <h2>{title}</h2>
        <span class="note">{unit}</span>
        <span class="grow" />
        <span class="legend">
          {series.map((one) => (
            <span><i class={`swatch ${one.tone}`} />{one.name} <b>{one.values[shown] == null ? "–" : format(one.values[shown]!)}</b></span>
          ))}
        </span>
      </figcaption>
      <div
        class="plot"
        ref={box}
        tabIndex={0}
        role="img"
        aria-label={`${title}, ${unit}. ${times[shown] === undefined ? "" : clock(times[shown]!, true)}: ${said}`}
        onPointerMove={(event) => point(event.clientX)}
        onPointerLeave={() => setPointed(null)}
        onBlur={() => setPointed(null)}
        onKeyDown={onKeyDown}
      >
        <svg width={width} height={HEIGHT + 22} aria-hidden="true">
          {[0, 0.5, 1].map((share) => (
            <g class="grid">
              <line x1={LEFT} x2={width - LEFT} y1={y(top * share)} y2={y(top * share)} />
              {share > 0 && <text x={LEFT} y={y(top * share) - 4}>{format(top * share)}</text>}
            </g>
          ))}
          {drawn.map((one, index) => ({ one, index })).reverse().map(({ one, index }) => (
            <g class={`series ${one.tone}`}>
              {props.isStacked ? (
                <path class="bars" d={bars(one.values, times, x, y, step, drawn[index - 1]?.values)} />
              ) : (
                <>
                  {index === 0 && <path class="area" d={area(one.values, times, x, y)} />}
                  <path class="stroke" d={line(one.values, times, x, y)} />
                </>
              )}
            </g>
          ))}
          {at !== null && times[at] !== undefined && <line class="cursor" x1={x(times[at]!)} x2={x(times[at]!)} y1={TOP} y2={HEIGHT} />}
          {[0, 0.5, 1].map((share) => (
            <text class="tick" x={x(first + (last - first) * share)} y={HEIGHT + 17} text-anchor={["start", "middle", "end"][share * 2]}>
              {share === 1 ? "now" : clock(first + (last - first) * share)}
            </text>
          ))}
          {at !== null && times[at] !== undefined && (
            <text class="tick pointed" x={Math.min(Math.max(x(times[at]!), 40), width - 40)} y={HEIGHT + 17} text-anchor="middle">{clock(times[at]!, true)}</text>
          )}
        </svg>
      </div>
    </figure>
  );
}

function useWidth(box: { current: HTMLDivElement | null }): number {
  const [width, setWidth] = useState(400);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(120, entry!.contentRect.width)));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);
  return width;
}

function stacked(series: Series[]): Series[] {
  const sums = series[0]!.values.map(() => 0);
  return series.map((one) => ({ ...one, values: one.values.map((value, index) => (sums[index]! += value ?? 0)) }));
}

type Scale = (value: number) => number;

/** Gaps where nothing is known: a line does not say what nobody measured. A lone point is a dot. */
function line(values: (number | null)[], times: number[], x: Scale, y: Scale): string {
  let path = "";
  values.forEach((value, index) => {
    if (value === null) return;
    const begins = index === 0 || values[index - 1] === null;
    path += `${begins ? "M" : "L"}${x(times[index]!).toFixed(1)},${y(value).toFixed(1)}`;
    if (begins && values[index + 1] == null) path += "m-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0";
  });
  return path;
}

function bars(values: (number | null)[], times: number[], x: Scale, y: Scale, step: number, below?: (number | null)[]): string {
  const width = Math.max(1, (x(step) - x(0)) * 0.72);
  let path = "";
  values.forEach((value, index) => {
    const from = y(below?.[index] ?? 0);
    const height = from - y(value ?? 0);
    if (height > 0.2) path += `M${(x(times[index]!) - width / 2).toFixed(1)},${from.toFixed(1)}v${(-height).toFixed(1)}h${width.toFixed(1)}v${height.toFixed(1)}z`;
  });
  return path;
}

function area(values: (number | null)[], times: number[], x: Scale, y: Scale): string {
  let path = "";
  for (let begin = 0; begin < values.length; begin++) {
    if (values[begin] === null) continue;
    let end = begin;
    while (end + 1 < values.length && values[end + 1] !== null) end++;
    const upper = range(begin, end).map((index) => `${x(times[index]!).toFixed(1)},${y(values[index]!).toFixed(1)}`);
    const lower = range(begin, end).reverse().map((index) => `${x(times[index]!).toFixed(1)},${y(0).toFixed(1)}`);
    path += `M${upper.join("L")}L${lower.join("L")}Z`;
    begin = end;
  }
  return path;
}

const range = (from: number, to: number): number[] => Array.from({ length: to - from + 1 }, (_, index) => from + index);

/** A round figure above the largest one. */
function ceiling(most: number, { isWhole, isBinary }: Props): number {
  if (most <= 0) return isWhole ? 2 : isBinary ? 1 << 26 : 1;
  const base = isBinary ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
  const scaled = (most * 1.05) / base;
  const power = 10 ** Math.floor(Math.log10(scaled));
  const round = [1, 1.5, 2, 3, 4, 5, 8, 10].find((one) => one * power >= scaled)! * power * base;
  return isWhole ? Math.max(2, Math.ceil(round / 2) * 2) : round;
}

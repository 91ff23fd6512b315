// How much this server does, and how fast: the last half hour, live.

import { useState } from "preact/hooks";
import type { History, Step } from "../api/types";
import { Chart, type Series } from "../ui/chart";
import { seconds, size, until } from "../ui/figures";
import { Failure, Skeleton } from "../ui/states";
import { Active } from "./active";
import { useHistory } from "./live";

const SPANS = [
  { minutes: 5, name: "5 min" },
  { minutes: 15, name: "15 min" },
  { minutes: 30, name: "30 min" },
];
const FAILED = ["failed", "timeout", "memory", "error", "cancelled"];

export function Activity() {
  const { history, error } = useHistory();
  const [minutes, setMinutes] = useState(5);
  return (
    <section class="view activity" aria-labelledby="activity-title">
      <header class="view-head">
        <div>
          <h1 id="activity-title">Activity</h1>
          <p class="note">Runs of everybody on this server, in steps of five seconds.</p>
        </div>
        <div class="segments" role="group" aria-label="How far back">
          {SPANS.map((span) => (
            <button aria-pressed={minutes === span.minutes} onClick={() => setMinutes(span.minutes)}>{span.name}</button>
          ))}
        </div>
      </header>
      {error != null && history === null && <Failure error={error} />}
      {history === null && error == null && <Skeleton rows={8} />}
      {history !== null && <Charts history={history} minutes={minutes} />}
      <Active />
    </section>
  );
}

const runsIn = (step: Step): number => Object.values(step.outcomes).reduce((sum, count) => sum + count, 0);
const failedIn = (step: Step): number => FAILED.reduce((sum, name) => sum + (step.outcomes[name] ?? 0), 0);

function Charts({ history, minutes }: { history: History; minutes: number }) {
  // The step of this moment is not drawn before it is over: it would always look like a fall.
  const whole = history.steps.length > 1 ? history.steps.slice(0, -1) : history.steps;
  const last = whole[whole.length - 1]!.time;
  const first = last - minutes * 60 + history.step;
  const steps = whole.filter((step) => step.time >= first);
  const rate = (count: number) => count / history.step;
  const chart = { first, last, step: history.step };
  const runs: Series[] = [
    { name: "succeeded", tone: "good", values: steps.map((step) => rate(step.outcomes["ok"] ?? 0)) },
    { name: "failed", tone: "bad", values: steps.map((step) => rate(failedIn(step))) },
  ];
  const latency: Series[] = [
    { name: "median", tone: "accent", values: steps.map((step) => step.p50) },
    { name: "95 %", tone: "faint", values: steps.map((step) => step.p95) },
  ];
  const memory: Series[] = [
    { name: "largest run", tone: "accent", values: steps.map((step) => step.memory || null) },
    { name: "this server", tone: "faint", values: steps.map((step) => step.resident) },
  ];
  const load: Series[] = [
    { name: "running", tone: "accent", values: steps.map((step) => step.running) },
    { name: "waiting", tone: "warn", values: steps.map((step) => step.waiting) },
  ];
  const times = steps.map((step) => step.time);
  return (
    <>
      <Tiles history={history} steps={history.steps.filter((step) => step.time >= first)} />
      <div class="charts">
        <Chart title="Runs" unit="per second" {...chart} times={times} series={runs} isStacked format={(value) => `${value.toFixed(value < 10 ? 1 : 0)}/s`} />
        <Chart title="Latency" unit="from request to result" {...chart} times={times} series={latency} format={seconds} />
        <Chart title="Memory" unit="at most" {...chart} times={times} series={memory} format={size} isBinary />
        <Chart title="At a time" unit="at most" {...chart} times={times} series={load} format={(value) => value.toFixed(0)} isWhole />
      </div>
    </>
  );
}

function Tiles({ history, steps }: { history: History; steps: Step[] }) {
  const total = steps.reduce((sum, step) => sum + runsIn(step), 0);
  const failed = steps.reduce((sum, step) => sum + failedIn(step), 0);
  const now = [...steps].reverse().find((step) => step.p50 !== null) ?? null;
  const up = Date.now() / 1000 - history.began;
  return (
    <dl class="tiles">
      <Tile name="Runs" value={total.toLocaleString()} note={total === 0 ? "none in this time" : `${((failed / total) * 100).toFixed(failed === 0 ? 0 : 1)} % failed`} />
      <Tile name="Median latency" value={seconds(now?.p50 ?? null)} note={now === null ? "no run yet" : `95 % within ${seconds(now.p95)}`} />
      <Tile name="Sandboxes" value={String(history.sandboxes)} note={history.queue === 0 ? "nobody waits" : `${history.queue} wait in line`} />
      <Tile name="Up" value={until(Date.now() / 1000 + up)} note={`holds ${size(steps[steps.length - 1]?.resident ?? 0)}`} />
    </dl>
  );
}

function Tile({ name, value, note }: { name: string; value: string; note: string }) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd class="figure">{value}</dd>
      <dd class="note">{note}</dd>
    </div>
  );
}

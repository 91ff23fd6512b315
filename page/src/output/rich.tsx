// What a guest showed, in the best form that can be shown without believing any of it.
// Pictures are data in an <img>, where SVG runs no script and asks for nothing; HTML goes into a frame without rights
// (public/frame.html); everything else is text.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { isDark } from "../ui/theme";
import type { Bundle } from "../api/types";
import { DataTable } from "./table";
import { rowsOf } from "./csv";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MOST_ROWS = 200;

const textIn = (bundle: Bundle, kind: string): string | null => {
  const value = Object.hasOwn(bundle, kind) ? bundle[kind] : undefined;
  return typeof value === "string" && value !== "" ? value : null;
};

export function Rich({ bundle, name }: { bundle: Bundle; name?: string }) {
  const plain = textIn(bundle, "text/plain");
  for (const kind of PICTURES) {
    const data = textIn(bundle, kind)?.replace(/\s/g, "");
    if (data && /^[A-Za-z0-9+/]+=*$/.test(data)) return <Picture source={`data:${kind};base64,${data}`} name={name ?? plain} />;
  }
  const svg = textIn(bundle, "image/svg+xml");
  if (svg !== null) return <Picture source={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg.toWellFormed())}`} name={name ?? plain} />;
  const html = textIn(bundle, "text/html");
  if (html !== null) return <HtmlFrame html={html} name={name ?? "what the program showed"} />;
  const table = textIn(bundle, "text/csv") ?? textIn(bundle, "text/tab-separated-values");
  if (table !== null) return <CsvTable text={table} separator={Object.hasOwn(bundle, "text/csv") ? "," : "\t"} />;
  const json = Object.hasOwn(bundle, "application/json") ? bundle["application/json"] : undefined;
  if (plain === null && json !== undefined) return <pre class="plain">{JSON.stringify(json, null, 2).slice(0, 200_000)}</pre>;
  return <pre class="plain">{(plain ?? `(${Object.keys(bundle).slice(0, 5).join(", ")})`).slice(0, 200_000)}</pre>;
}

function Picture({ source, name }: { source: string; name: string | null }) {
  const [isBroken, setBroken] = useState(false);
  if (isBroken) return <p class="note">This is not a picture that can be shown.</p>;
  return <img class="picture" src={source} alt={name ?? "a picture that the program made"} onError={() => setBroken(true)} />;
}

export function CsvTable({ text, separator }: { text: string; separator: "," | "\t" }) {
  const { rows, isCut } = rowsOf(text, separator, MOST_ROWS + 1);
  return <DataTable head={rows[0] ?? []} rows={rows.slice(1)} note={isCut ? `The first ${MOST_ROWS} rows.` : ""} />;
}

/** The frame says when it is ready, gets what to show, and answers with its height and nothing else. */
function HtmlFrame({ html, name }: { html: string; name: string }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(60);
  // Before the frame can have been loaded: what it says first must be heard.
  useLayoutEffect(() => {
    const hear = (event: MessageEvent) => {
      const inner = frame.current?.contentWindow;
      if (event.source !== inner || inner == null) return;
      if (event.data?.ready === true) inner.postMessage({ html, dark: isDark() }, "*");
      const told = Number(event.data?.height);
      if (Number.isFinite(told)) setHeight(Math.min(Math.max(told, 24), 600));
    };
    addEventListener("message", hear);
    return () => removeEventListener("message", hear);
  }, [html]);
  return <iframe ref={frame} key={html} class="shown-html" sandbox="allow-scripts" src="/page/frame.html" title={name} height={height} />;
}

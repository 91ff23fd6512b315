// Files that a run left: pictures and tables shown, all of them to be had.

import { bytesOf, download } from "../ui/download";
import { size } from "../ui/figures";
import { IconDownload } from "../ui/icons";
import type { Bundle } from "../api/types";
import { Rich } from "./rich";

const KINDS: Record<string, string> = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp",
  svg: "image/svg+xml", csv: "text/csv", tsv: "text/tab-separated-values", html: "text/html",
  txt: "text/plain", json: "text/plain", md: "text/plain",
};

export const suffixOf = (path: string): string => /\.(\w+)$/.exec(path)?.[1]?.toLowerCase() ?? "";

/** Names in a program that look like pictures and tables it will write. */
export function namesIn(code: string): string[] {
  const found = code.matchAll(/(?<![\w./~-])((?:[\w-]+\/)*[\w-][\w.-]*\.(?:png|jpe?g|gif|webp|svg|csv|tsv|html))(?![\w./])/gi);
  return [...new Set([...found].map((match) => match[1]!))].slice(0, 8);
}

/** The content as something to show, or null where it is nothing that can be. */
export function bundleOf(path: string, content: Uint8Array<ArrayBuffer>): Bundle | null {
  const kind = Object.hasOwn(KINDS, suffixOf(path)) ? KINDS[suffixOf(path)]! : null;
  if (kind === null) return null;
  if (kind.startsWith("image/") && kind !== "image/svg+xml") return { [kind]: base64(content) };
  return { [kind]: new TextDecoder().decode(content) };
}

function base64(content: Uint8Array): string {
  let text = "";
  for (let at = 0; at < content.length; at += 0x8000) text += String.fromCharCode(...content.subarray(at, at + 0x8000));
  return btoa(text);
}

/** Pictures first. */
const byKind = ([one]: [string, string], [other]: [string, string]): number => Number(isPicture(other)) - Number(isPicture(one));
const isPicture = (path: string): boolean => (KINDS[suffixOf(path)] ?? "").startsWith("image/");

export function FilesLeft({ files }: { files: Record<string, string> }) {
  return (
    <>
      {Object.entries(files).sort(byKind).map(([path, encoded]) => {
        const content = bytesOf(encoded);
        const bundle = bundleOf(path, content);
        return (
          <figure class="artefact" key={path}>
            <figcaption>
              <span class="path">{path}</span>
              <span class="note">{size(content.length)}</span>
              <button class="quiet icon" aria-label={`Download ${path}`} onClick={() => download(path, content)}>
                <IconDownload />
              </button>
            </figcaption>
            {bundle !== null && <div class="artefact-body"><Rich bundle={bundle} name={path} /></div>}
          </figure>
        );
      })}
    </>
  );
}

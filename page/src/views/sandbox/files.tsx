// The files of a sandbox: a tree, one of them looked at, and what has changed, line by line.

import { useEffect, useState } from "preact/hooks";
import { ask, Refusal, send, words } from "../../api/client";
import type { Change, Entry } from "../../api/types";
import { useLoaded } from "../../api/use";
import { DiffView } from "../../diff/view";
import { Editor } from "../../editor/editor";
import { languageOfSuffix } from "../../editor/languages";
import { bundleOf, suffixOf } from "../../output/files";
import { Rich } from "../../output/rich";
import { download } from "../../ui/download";
import { size } from "../../ui/figures";
import { IconCheck, IconDownload, IconFile, IconFolder, IconReload, IconTrash, IconUpload } from "../../ui/icons";
import { Empty, Failure, Skeleton } from "../../ui/states";
import { useDialog } from "../../ui/confirm";
import { useWatch } from "./watch";

const LARGEST_SHOWN = 2 << 20;
const SHOWN = ["png", "jpg", "jpeg", "gif", "webp", "svg", "csv", "tsv", "html"];
const inPath = (path: string): string => path.split("/").map(encodeURIComponent).join("/");

export function Files({ at }: { at: string }) {
  const tree = useLoaded<Entry[]>(`${at}/tree?depth=12`);
  const changes = useLoaded<Change[]>(`${at}/diff`);
  const [chosen, setChosen] = useState<Entry | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [underWay, setUnderWay] = useState<{ name: string; share: number } | null>(null);
  const [revisions, setRevisions] = useState<Record<string, number>>({});
  const reload = () => (tree.reload(), changes.reload());
  useWatch(at, (paths) => {
    setRevisions((before) => ({ ...before, ...Object.fromEntries(paths.map((path) => [path, (before[path] ?? 0) + 1])) }));
    reload();
  });
  const upload = async (files: FileList | null) => {
    setFailure(null);
    for (const [index, file] of [...(files ?? [])].entries()) {
      const name = files!.length === 1 ? file.name : `${file.name} (${index + 1} of ${files!.length})`;
      setUnderWay({ name, share: 0 });
      await send(`${at}/files/${inPath(file.name)}`, file, (share) => setUnderWay({ name, share })).catch(setFailure);
    }
    setUnderWay(null);
    reload();
  };
  const mark = () => ask(`${at}/mark`, { method: "POST" }).then(reload, setFailure);
  const kinds = new Map((changes.data ?? []).map((change) => [change.path, change.kind]));
  const gone = (changes.data ?? []).filter((change) => change.kind === "deleted");
  const paths = new Set(tree.data?.map((entry) => entry.path));
  return (
    <div class="files">
      <div class="card tree-card">
        <div class="tree-head">
          <h2>Files</h2>
          <span class="grow" />
          <label class="upload quiet icon" title="Upload files">
            <IconUpload />
            <span class="visually-hidden">Upload files</span>
            <input type="file" multiple onChange={(event) => void upload(event.currentTarget.files)} />
          </label>
          <button class="quiet icon" aria-label="Mark as seen: changes count from now" title="Mark as seen: changes count from now" disabled={!changes.data?.length} onClick={() => void mark()}><IconCheck /></button>
          <button class="quiet icon" aria-label="Look again" title="Look again" onClick={reload}><IconReload /></button>
        </div>
        {underWay !== null && (
          <p class="under-way" role="status">
            <span class="path">{underWay.name}</span>
            <progress aria-label={`Uploading ${underWay.name}`} max={1} value={underWay.share} />
            <span class="note">{Math.floor(underWay.share * 100)} %</span>
          </p>
        )}
        {(tree.error ?? failure) != null && <Failure error={tree.error ?? failure} onRetry={() => (setFailure(null), reload())} />}
        {tree.data === null && tree.error == null && <Skeleton />}
        {tree.data?.length === 0 && <p class="note tree-empty">The work directory is empty. What programs write appears here.</p>}
        <ul class="tree" aria-label="Files">
          {tree.data?.map((entry) => (
            <li key={entry.path} class={`deep-${Math.min(8, entry.path.split("/").length - 1)}`}>
              {entry.is_dir ? (
                <span class="tree-row"><IconFolder /><span class="path">{entry.name}</span></span>
              ) : (
                <button class="tree-row quiet" aria-pressed={chosen?.path === entry.path} onClick={() => setChosen(entry)}>
                  <IconFile />
                  <span class="path">{entry.name}</span>
                  {kinds.has(entry.path) && <span class={`change ${kinds.get(entry.path)}`}>{kinds.get(entry.path)}</span>}
                  <span class="note">{size(entry.size)}</span>
                </button>
              )}
            </li>
          ))}
          {gone.map((change) => (
            <li key={`gone ${change.path}`}>
              <button class="tree-row quiet gone" aria-pressed={chosen?.path === change.path} onClick={() => setChosen({ ...change, name: change.path, is_dir: false, is_file: true })}>
                <IconFile /><span class="path">{change.path}</span><span class="change deleted">deleted</span>
              </button>
            </li>
          ))}
        </ul>
      </div>
      {chosen !== null && (tree.data === null || paths.has(chosen.path) || kinds.has(chosen.path)) ? (
        <FileView key={`${chosen.path} ${kinds.get(chosen.path)}`} at={at} entry={tree.data?.find((entry) => entry.path === chosen.path) ?? chosen} revision={revisions[chosen.path] ?? 0} change={kinds.get(chosen.path)} onRemoved={() => (setChosen(null), reload())} />
      ) : (
        <div class="card file-card">
          <Empty icon={<IconFile />} title="No file is chosen"><p class="note">Choose one to look at it, or upload one.</p></Empty>
        </div>
      )}
    </div>
  );
}

type Content = { bytes: Uint8Array<ArrayBuffer> } | { error: unknown } | null;
type FileProps = { at: string; entry: Entry; revision: number; change?: Change["kind"]; onRemoved: () => void };

function FileView({ at, entry, revision, change, onRemoved }: FileProps) {
  const [content, setContent] = useState<Content>(null);
  const isGone = change === "deleted";
  const [isDiff, setDiff] = useState(change === "modified" || isGone);
  const { confirm, dialog } = useDialog();
  const address = `${at}/files/${inPath(entry.path)}`;
  const isTooLarge = entry.size > LARGEST_SHOWN;
  const fetched = async () => new Uint8Array(await (await ask(address, { accept: "*/*" })).arrayBuffer());
  useEffect(() => {
    if (isGone) return setContent({ bytes: new Uint8Array() });
    if (isTooLarge) return;
    let isCurrent = true;
    fetched().then((bytes) => isCurrent && setContent({ bytes }), (error: unknown) => isCurrent && setContent({ error }));
    return () => void (isCurrent = false);
  }, [address, revision, isTooLarge]);
  const remove = async () => {
    if (!(await confirm(`Remove ${entry.name}?`, "It cannot be taken back.", "Remove"))) return;
    await ask(address, { method: "DELETE" }).then(onRemoved, (error: unknown) => setContent({ error }));
  };
  return (
    <div class="card file-card">
      <div class="tree-head">
        <h2 class="path">{entry.path}</h2>
        <span class="note">{size(entry.size)}</span>
        <span class="grow" />
        {change !== undefined && (
          <div class="segments" role="group" aria-label="What is shown">
            <button aria-pressed={!isDiff} disabled={isGone} onClick={() => setDiff(false)}>File</button>
            <button aria-pressed={isDiff} onClick={() => setDiff(true)}>Changes</button>
          </div>
        )}
        <button class="quiet icon" disabled={isGone} aria-label={`Download ${entry.path}`} onClick={() => void fetched().then((bytes) => download(entry.path, bytes), (error: unknown) => setContent({ error }))}><IconDownload /></button>
        <button class="quiet icon" disabled={isGone} aria-label={`Remove ${entry.path}`} onClick={() => void remove()}><IconTrash /></button>
      </div>
      {isTooLarge && <p class="note tree-empty">It is too large to be shown; download it.</p>}
      {content === null && !isTooLarge && <Skeleton />}
      {content !== null && "error" in content && <p class="problem tree-empty">{words(content.error)}</p>}
      {content !== null && "bytes" in content && !isDiff && <Contents path={entry.path} bytes={content.bytes} />}
      {content !== null && "bytes" in content && isDiff && <Changes at={at} path={entry.path} change={change!} after={content.bytes} />}
      {dialog}
    </div>
  );
}

function Contents({ path, bytes }: { path: string; bytes: Uint8Array<ArrayBuffer> }) {
  const suffix = suffixOf(path);
  if (SHOWN.includes(suffix)) return <div class="artefact-body"><Rich bundle={bundleOf(path, bytes)!} name={path} /></div>;
  if (bytes.includes(0)) return <p class="note tree-empty">It is not text; download it.</p>;
  return <Editor code={new TextDecoder().decode(bytes)} revision={bytes} language={languageOfSuffix(suffix)} label={`Content of ${path}`} />;
}

function Changes({ at, path, change, after }: { at: string; path: string; change: Change["kind"]; after: Uint8Array<ArrayBuffer> }) {
  const [before, setBefore] = useState<Content>(change === "created" ? { bytes: new Uint8Array() } : null);
  useEffect(() => {
    if (change === "created") return;
    const fetched = async () => new Uint8Array(await (await ask(`${at}/before/${inPath(path)}`, { accept: "*/*" })).arrayBuffer());
    fetched().then((bytes) => setBefore({ bytes }), (error: unknown) => setBefore({ error }));
  }, [at, path, change]);
  if (before === null) return <Skeleton />;
  if ("error" in before) return <div class="tree-empty"><p class="problem">{words(before.error)}</p>{before.error instanceof Refusal && <p class="note">{before.error.hint}</p>}</div>;
  if (before.bytes.includes(0) || after.includes(0)) return <p class="note tree-empty">It is not text: there are no lines to compare.</p>;
  const decoder = new TextDecoder();
  return <DiffView path={path} before={decoder.decode(before.bytes)} after={decoder.decode(after)} />;
}

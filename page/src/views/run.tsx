// Write a program and run it.

import { useEffect, useRef, useState } from "preact/hooks";
import { connection } from "../api/connection";
import { useStore } from "../api/store";
import { useLoaded } from "../api/use";
import type { Capabilities } from "../api/types";
import { Editor } from "../editor/editor";
import { nameOf } from "../editor/languages";
import { sampleOf } from "../editor/samples";
import { IconRun, IconSettings, IconStop } from "../ui/icons";
import { useCommands } from "../ui/palette";
import { go, route } from "../ui/router";
import { Failure } from "../ui/states";
import { Drafts } from "./drafts";
import { Outcome } from "./outcome";
import { Running } from "./running";
import { DEFAULTS, requestOf, RunSettings, type Settings } from "./run-settings";

const running = new Running();

export function Run() {
  const found = useLoaded<Capabilities>("/v1/capabilities");
  const languages = found.data?.languages ?? ["python"];
  const [language, setLanguage] = useState(() => Drafts.language() ?? "python");
  const [code, setCode] = useState(() => Drafts.code(language) ?? sampleOf(language));
  const [revision, setRevision] = useState(0);
  const [settings, setSettings] = useState<Settings>(DEFAULTS);
  const [isOpen, setOpen] = useState(false);
  const state = useStore(running.state);
  const { state: isConnected } = useStore(connection);
  const isRunning = state.phase === "running";

  const start = () => {
    if (code.trim() !== "") void running.start(requestOf(language, code, settings));
  };
  const choose = (next: string) => {
    Drafts.keep(language, code, next);
    setLanguage(next);
    setCode(Drafts.code(next) ?? sampleOf(next));
    setRevision((before) => before + 1);
  };
  const change = (next: string) => (setCode(next), Drafts.keep(language, next));
  const beginAnew = () => (change(sampleOf(language)), setRevision((before) => before + 1));
  useRunKeys(start, isRunning);
  useCommands(
    [
      { name: "Run the program", hint: "Ctrl ↵", run: () => (go("run"), start()) },
      { name: "Stop the program", hint: "Esc", run: () => running.stop() },
      { name: "Begin anew with the sample", run: beginAnew },
      ...languages.map((one) => ({ name: `Write ${nameOf(one)}`, run: () => (go("run"), choose(one)) })),
    ],
    [languages.join(), language, code, settings],
  );

  return (
    <section class="run" aria-labelledby="run-title">
      <h1 id="run-title" class="visually-hidden">Run</h1>
      <div class="toolbar">
        <label class="choice">
          <span class="visually-hidden">Language</span>
          <select value={language} onInput={(event) => choose(event.currentTarget.value)}>
            {[...new Set([...languages, language])].map((one) => <option value={one}>{nameOf(one)}</option>)}
          </select>
        </label>
        <span class="version">{found.data?.versions[language]?.replace(/\s*\(.*$/, "") ?? ""}</span>
        <span class="grow" />
        <button class="quiet" aria-label="Options" aria-expanded={isOpen} aria-controls="run-settings" onClick={() => setOpen(!isOpen)}>
          <IconSettings /> <span>Options</span>
        </button>
        {isRunning ? (
          <button class="stop" onClick={() => running.stop()}>
            <IconStop /> Stop <kbd>Esc</kbd>
          </button>
        ) : (
          <button class="primary" onClick={start} disabled={isConnected !== "online" || code.trim() === ""}>
            <IconRun /> Run <kbd>Ctrl ↵</kbd>
          </button>
        )}
      </div>
      {isOpen && <RunSettings settings={settings} onChange={setSettings} />}
      {found.error != null && found.data === null && <Failure error={found.error} onRetry={found.reload} />}
      <div class="split">
        <div class="pane code-pane">
          <Editor code={code} revision={revision} language={language} label={`Program in ${nameOf(language)}`} onChange={change} onRun={start} />
        </div>
        <Outcome state={state} onRetry={start} />
      </div>
    </section>
  );
}

function useRunKeys(start: () => void, isRunning: boolean): void {
  const held = useRef({ start, isRunning });
  held.current = { start, isRunning };
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if ((route.value[0] ?? "run") !== "run" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) held.current.start();
      else if (event.key === "Escape" && held.current.isRunning) running.stop();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

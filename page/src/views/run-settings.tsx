// What a program is given, and what it may use. Every field is kept as typed and parsed when a run starts.

import { namesIn } from "../output/files";

export type Settings = { timeout: string; memory: string; stdin: string; arguments: string; files: string };
export const DEFAULTS: Settings = { timeout: "", memory: "", stdin: "", arguments: "", files: "" };
const DEFAULT_TIMEOUT = 30;

export function requestOf(language: string, code: string, settings: Settings): object {
  const wanted = [...new Set([...namesIn(code), ...settings.files.split(/[\s,]+/).filter(Boolean)])];
  return {
    language,
    code,
    timeout: settings.timeout === "" ? DEFAULT_TIMEOUT : Number(settings.timeout),
    ...(settings.memory === "" ? {} : { memory_limit_mb: Number(settings.memory) }),
    ...(settings.stdin === "" ? {} : { stdin: settings.stdin }),
    ...(settings.arguments.trim() === "" ? {} : { args: settings.arguments.trim().split(/\s+/) }),
    ...(wanted.length === 0 ? {} : { fetch_files: wanted }),
  };
}

export function RunSettings({ settings, onChange }: { settings: Settings; onChange: (next: Settings) => void }) {
  const set = (change: Partial<Settings>) => onChange({ ...settings, ...change });
  return (
    <div class="settings" id="run-settings">
      <label class="field">
        <span>Time limit, seconds</span>
        <input type="number" min="0.1" max="300" step="any" placeholder={String(DEFAULT_TIMEOUT)} value={settings.timeout} onInput={(event) => set({ timeout: event.currentTarget.value })} />
      </label>
      <label class="field">
        <span>Memory limit, MB</span>
        <input type="number" min="1" step="1" placeholder="the server's" value={settings.memory} onInput={(event) => set({ memory: event.currentTarget.value })} />
      </label>
      <label class="field">
        <span>Arguments</span>
        <input value={settings.arguments} spellcheck={false} placeholder="none" onInput={(event) => set({ arguments: event.currentTarget.value })} />
      </label>
      <label class="field">
        <span>Files to keep</span>
        <input value={settings.files} spellcheck={false} placeholder="pictures and tables by themselves" onInput={(event) => set({ files: event.currentTarget.value })} />
      </label>
      <label class="field wide">
        <span>Standard input</span>
        <textarea rows={2} value={settings.stdin} spellcheck={false} placeholder="nothing" onInput={(event) => set({ stdin: event.currentTarget.value })} />
      </label>
    </div>
  );
}

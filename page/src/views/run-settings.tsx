// What a program is given, and what it may use.

export type Settings = { timeout: number; memory: number | null; stdin: string; arguments: string; files: string };
export const DEFAULTS: Settings = { timeout: 30, memory: null, stdin: "", arguments: "", files: "" };

export function RunSettings({ settings, onChange }: { settings: Settings; onChange: (next: Settings) => void }) {
  const set = (change: Partial<Settings>) => onChange({ ...settings, ...change });
  return (
    <div class="settings" id="run-settings">
      <label class="field">
        <span>Time limit, seconds</span>
        <input type="number" min="0.1" max="300" step="any" value={settings.timeout} onChange={(event) => set({ timeout: Number(event.currentTarget.value) || DEFAULTS.timeout })} />
      </label>
      <label class="field">
        <span>Memory limit, MB</span>
        <input type="number" min="1" step="1" placeholder="the server's" value={settings.memory ?? ""} onChange={(event) => set({ memory: Math.round(Number(event.currentTarget.value)) || null })} />
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

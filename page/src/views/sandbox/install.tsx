// Packages for a sandbox. How long it takes nobody knows: the bar moves, and the seconds are counted.

import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "../../api/client";
import { IconDownload } from "../../ui/icons";
import { Failure } from "../../ui/states";

type State = { phase: "idle" } | { phase: "busy"; since: number } | { phase: "done"; names: string } | { phase: "failed"; error: unknown };

export function Install({ at, manager, isOffered }: { at: string; manager: "pip" | "npm"; isOffered: boolean }) {
  const box = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [state, setState] = useState<State>({ phase: "idle" });
  const isBusy = state.phase === "busy";
  const install = async () => {
    const packages = typed.split(/[\s,]+/).filter(Boolean);
    if (packages.length === 0 || isBusy) return;
    setState({ phase: "busy", since: Date.now() });
    await post(`${at}/install`, { packages, manager }).then(
      () => (setState({ phase: "done", names: packages.join(", ") }), setTyped("")),
      (error: unknown) => setState({ phase: "failed", error }),
    );
  };
  if (!isOffered) return null;
  return (
    <>
      <button class="quiet" onClick={() => box.current?.showModal()}><IconDownload /> Install</button>
      <dialog ref={box} class="confirm install" aria-label="Install packages">
        <h2>Install packages</h2>
        <p class="note">For {manager === "npm" ? "JavaScript, by npm" : "Python, by pip"}, in this sandbox alone.</p>
        <form onSubmit={(event) => (event.preventDefault(), void install())}>
          <input aria-label="Names of packages" class="mono" spellcheck={false} placeholder={manager === "npm" ? "lodash" : "pandas requests"} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          <div aria-live="polite">
            {state.phase === "busy" && <Busy since={state.since} />}
            {state.phase === "done" && <p class="note">{state.names}: installed.</p>}
            {state.phase === "failed" && <Failure error={state.error} />}
          </div>
          <div class="confirm-buttons">
            <button type="button" onClick={() => box.current?.close()}>Close</button>
            <button class="primary" type="submit" disabled={isBusy || typed.trim() === ""}>Install</button>
          </div>
        </form>
      </dialog>
    </>
  );
}

function Busy({ since }: { since: number }) {
  const [now, setNow] = useState(since);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  return (
    <p class="under-way">
      <progress aria-label="Installing" />
      <span class="note">{Math.floor((now - since) / 1000)} s</span>
    </p>
  );
}

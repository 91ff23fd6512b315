// Servers in a sandbox, as links. They open in a tab of their own, under an origin that is not ours.

import { useState } from "preact/hooks";
import { ask, post } from "../../api/client";
import type { Port } from "../../api/types";
import { useLoaded } from "../../api/use";
import { IconLink, IconPlus, IconTrash } from "../../ui/icons";
import { Empty, Failure, Skeleton } from "../../ui/states";

export function Ports({ at }: { at: string }) {
  const { data, error, reload } = useLoaded<Port[]>(`${at}/ports`);
  const [typed, setTyped] = useState("8000");
  const [failure, setFailure] = useState<unknown>(null);
  const expose = async () => {
    setFailure(null);
    await post(`${at}/ports`, { port: Number(typed) }).catch(setFailure);
    reload();
  };
  const close = async (port: number) => {
    await ask(`${at}/ports/${port}`, { method: "DELETE" }).catch(setFailure);
    reload();
  };
  return (
    <div class="processes">
      <form class="command" onSubmit={(event) => (event.preventDefault(), void expose())}>
        <input aria-label="Port in the sandbox" type="number" min="1" max="65535" required value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        <button class="primary" type="submit"><IconPlus /> Expose</button>
      </form>
      {(failure ?? (data === null ? error : null)) != null && <Failure error={failure ?? error} />}
      {data === null && error == null && <Skeleton rows={2} />}
      {data?.length === 0 && <Empty icon={<IconLink />} title="No port is exposed"><p class="note">A server in the sandbox can be reached from this machine once its port is exposed.</p></Empty>}
      {data !== null && data.length > 0 && (
        <ul class="card list">
          {data.map((port) => (
            <li key={port.port}>
              <a href={/^http:\/\/[\w.:[\]]+\/?$/.test(port.url) ? port.url : undefined} target="_blank" rel="noopener noreferrer">
                <span class="list-icon"><IconLink /></span>
                <span class="list-text"><strong>Port {port.port}</strong><span class="note">{port.url}</span></span>
              </a>
              <button class="quiet icon" aria-label={`Close port ${port.port}`} onClick={() => void close(port.port)}><IconTrash /></button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

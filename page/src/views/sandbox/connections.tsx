// What a sandbox reached, and what it was refused, newest first.

import type { Connection } from "../../api/types";
import { useLoaded } from "../../api/use";
import { size } from "../../ui/figures";
import { IconLink } from "../../ui/icons";
import { Empty, Failure, Skeleton } from "../../ui/states";
import { useNow } from "../sandboxes";

export function Connections({ at }: { at: string }) {
  const { data, error, reload } = useLoaded<Connection[]>(`${at}/connections`);
  useNow(2000, reload);
  const rows = data === null ? [] : [...data].reverse();
  return (
    <div class="processes">
      {data === null && error != null && <Failure error={error} onRetry={reload} />}
      {data === null && error == null && <Skeleton rows={2} />}
      {data?.length === 0 && <Empty icon={<IconLink />} title="No connection yet"><p class="note">Tunnels, HTTP requests and fetches of this sandbox are listed here, allowed or refused.</p></Empty>}
      {rows.length > 0 && (
        <div class="card table-card scroll-x" role="region" aria-label="Connections" tabIndex={0}>
          <table class="columns">
            <thead>
              <tr><th scope="col">Verdict</th><th scope="col">Time</th><th scope="col">Host</th><th scope="col">Port</th><th scope="col">Sent</th><th scope="col">Received</th><th scope="col">Rule</th></tr>
            </thead>
            <tbody>
              {rows.map((one, index) => (
                <tr key={rows.length - index}>
                  <td><span class={`pill ${one.is_allowed ? "good" : "bad"}`}><span class="dot" aria-hidden="true" />{one.is_allowed ? "allowed" : "refused"}</span></td>
                  <td class="tabular">{new Date(one.time * 1000).toLocaleTimeString()}</td><td>{one.host}</td><td class="tabular">{one.port}</td>
                  <td class="tabular">{size(one.bytes_sent)}</td><td class="tabular">{size(one.bytes_received)}</td><td>{one.rule}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

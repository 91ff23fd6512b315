// What a view shows when it has nothing to show: empty, loading, or refused.

import type { ComponentChildren } from "preact";
import { words } from "../api/client";
import { IconReload, IconWarning } from "./icons";

export function Empty({ icon, title, children }: { icon: ComponentChildren; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <div class="empty-icon">{icon}</div>
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Failure({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const hint = (error as { hint?: string | null } | null)?.hint ?? null;
  return (
    <div class="failure" role="alert">
      <IconWarning />
      <div>
        <strong>{words(error)}</strong>
        {hint && <p class="note">{hint}</p>}
      </div>
      {onRetry && (
        <button class="quiet" onClick={onRetry}>
          <IconReload /> Try again
        </button>
      )}
    </div>
  );
}

export const Skeleton = ({ rows = 5 }: { rows?: number }) => (
  <div class="skeleton" role="status" aria-label="Loading">
    {Array.from({ length: rows }, (_, index) => <div key={index} class={`bone bone-${index % 4}`} />)}
  </div>
);

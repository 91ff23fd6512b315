// The token lives as long as the tab. It is sent as a header only: there is no cookie that another page could ride on.

const KEY = "warmcell.token";

export const token = (): string | null => sessionStorage.getItem(KEY);
export const keepToken = (value: string): void => sessionStorage.setItem(KEY, value);

/** Forgets the token and all that the tab kept. Views save what they have when the page goes: this listener is the last. */
export function signOut(): void {
  addEventListener("pagehide", () => sessionStorage.clear());
  sessionStorage.clear();
  location.replace(location.pathname);
  location.reload();
}

/** What `warmcell serve --open` put behind the `#`, which works once. Taken out of the address before anything else. */
export async function redeemCode(): Promise<void> {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (code === undefined) return;
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("/v1/sign-in", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ code }),
  }).catch(() => null);
  if (answer?.ok) keepToken((await answer.json()).token);
}

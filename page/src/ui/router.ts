// Where one is: behind the `#` of the address, so that every view can be linked to and the server knows one page.

import { Store } from "../api/store";

const read = (): string[] => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);

export const route = new Store<string[]>([]);
export const readRoute = (): void => route.set(read());
export const go = (...parts: string[]): void => void (location.hash = "/" + parts.map(encodeURIComponent).join("/"));

addEventListener("hashchange", readRoute);

// Who is signed in, and what the token may do. A view that it may not see is not offered.

import { Store, useStore } from "./store";

export type Identity = { id: string; name: string; scopes: string[]; requires_token: boolean; has_audit: boolean };

export const identity = new Store<Identity | null>(null);
export const useScope = (scope: string): boolean => useStore(identity)?.scopes.includes(scope) ?? false;

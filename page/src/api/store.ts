// A value that components watch.

import { useEffect, useState } from "preact/hooks";

export class Store<T> {
  private readonly watchers = new Set<(value: T) => void>();

  constructor(public value: T) {}

  set(value: T): void {
    this.value = value;
    for (const watcher of [...this.watchers]) watcher(value);
  }

  watch(watcher: (value: T) => void): () => void {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }
}

export function useStore<T>(store: Store<T>): T {
  const [value, setValue] = useState(store.value);
  useEffect(() => {
    setValue(store.value);
    return store.watch((next) => setValue(() => next));
  }, [store]);
  return value;
}

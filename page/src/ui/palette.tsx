// Ctrl+K or /: everything that can be done, by its name.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Store, useStore } from "../api/store";
import { IconSearch } from "./icons";

export type Command = { name: string; hint?: string; run: () => void };

/** Views add theirs while they are shown. */
export const commands = new Store<Command[]>([]);
export const isPaletteOpen = new Store(false);

export function useCommands(mine: Command[], because: unknown[]): void {
  useEffect(() => {
    commands.set([...commands.value, ...mine]);
    return () => commands.set(commands.value.filter((one) => !mine.includes(one)));
  }, because);
}

export function Palette() {
  const isOpen = useStore(isPaletteOpen);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  return (
    <dialog
      ref={dialog}
      class="palette"
      aria-label="Commands"
      onClose={() => isPaletteOpen.set(false)}
      onClick={(event) => event.target === dialog.current && isPaletteOpen.set(false)}
    >
      {isOpen && <Choices />}
    </dialog>
  );
}

function Choices() {
  const all = useStore(commands);
  const [asked, setAsked] = useState("");
  const [at, setAt] = useState(0);
  const found = useMemo(() => all.filter((one) => fits(one.name, asked)).slice(0, 40), [all, asked]);
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" }), [at]);
  const choose = (command: Command | undefined) => {
    isPaletteOpen.set(false);
    command?.run();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step !== 0) setAt((before) => (before + step + found.length) % Math.max(1, found.length));
    else if (event.key === "Enter") choose(found[at]);
    else return;
    event.preventDefault();
  };
  return (
    <>
      <label class="palette-search">
        <IconSearch />
        <input
          autofocus
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={`palette-${at}`}
          aria-label="Find a command"
          placeholder="What to do?"
          value={asked}
          onInput={(event) => (setAsked(event.currentTarget.value), setAt(0))}
          onKeyDown={onKeyDown}
        />
      </label>
      <ul role="listbox" id="palette-list" ref={list} aria-label="Commands">
        {found.map((command, index) => (
          <li role="option" id={`palette-${index}`} aria-selected={index === at} onMouseMove={() => setAt(index)} onClick={() => choose(command)}>
            <span>{command.name}</span>
            {command.hint && <kbd>{command.hint}</kbd>}
          </li>
        ))}
        {found.length === 0 && <li class="note">Nothing is called that.</li>}
      </ul>
    </>
  );
}

function fits(name: string, asked: string): boolean {
  let at = 0;
  const lower = name.toLowerCase();
  for (const sign of asked.toLowerCase().replace(/\s+/g, "")) {
    at = lower.indexOf(sign, at) + 1;
    if (at === 0) return false;
  }
  return true;
}

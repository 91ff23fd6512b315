// Light, dark, or as the system has it.

import { Store } from "../api/store";

export type Theme = "system" | "light" | "dark";
const KEY = "warmcell.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const held = localStorage.getItem(KEY);
export const theme = new Store<Theme>(held === "light" || held === "dark" ? held : "system");

export const isDark = (): boolean => theme.value === "dark" || (theme.value === "system" && system.matches);

function apply(): void {
  document.documentElement.dataset["theme"] = isDark() ? "dark" : "light";
}

export function choose(next: Theme): void {
  localStorage.setItem(KEY, next);
  theme.set(next);
  apply();
}

system.addEventListener("change", () => {
  apply();
  theme.set(theme.value);
});
apply();

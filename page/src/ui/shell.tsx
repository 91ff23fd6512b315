// Around every view: where one can go, how the connection is, light or dark.

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { connection } from "../api/connection";
import { identity, type Identity } from "../api/identity";
import { useStore } from "../api/store";
import { signOut } from "../api/token";
import { useLoaded } from "../api/use";
import { Activity } from "../views/activity";
import { AuditView } from "../views/audit";
import { Doctor } from "../views/doctor";
import { Run } from "../views/run";
import { SandboxView } from "../views/sandbox";
import { Sandboxes } from "../views/sandboxes";
import { UsageView } from "../views/usage";
import { IconAuto, IconBox, IconCode, IconGauge, IconLeave, IconList, IconMoon, IconPulse, IconSearch, IconShield, IconSun, IconUser } from "./icons";
import { isPaletteOpen, Palette, useCommands } from "./palette";
import { go, route } from "./router";
import { Mark, SignIn } from "./sign-in";
import { Failure, Skeleton } from "./states";
import { choose, theme, type Theme } from "./theme";

type Place = { path: string; name: string; icon: ComponentChildren; scope: string | null };
const PLACES: Place[] = [
  { path: "run", name: "Run", icon: <IconCode />, scope: "run" },
  { path: "sandboxes", name: "Sandboxes", icon: <IconBox />, scope: "sandbox" },
  { path: "activity", name: "Activity", icon: <IconPulse />, scope: "metrics" },
  { path: "usage", name: "Usage", icon: <IconGauge />, scope: null },
  { path: "audit", name: "Audit", icon: <IconList />, scope: "operate" },
  { path: "doctor", name: "Doctor", icon: <IconShield />, scope: "doctor" },
];

const placesOf = ({ scopes, has_audit }: Identity): Place[] =>
  PLACES.filter((place) => (place.scope === null || scopes.includes(place.scope)) && (place.path !== "audit" || has_audit));

export function Shell() {
  const { state } = useStore(connection);
  const found = useLoaded<Identity>("/v1/identity");
  useEffect(() => {
    if (found.data !== null) identity.set(found.data);
  }, [found.data]);
  if (state === "signed-out") return <SignIn />;
  if (found.data !== null) return <SignedIn who={found.data} />;
  return <main id="main" class="starting">{found.error != null ? <Failure error={found.error} onRetry={found.reload} /> : <Skeleton />}</main>;
}

function SignedIn({ who }: { who: Identity }) {
  const { state } = useStore(connection);
  const [asked, sandbox, tab] = useStore(route);
  const places = placesOf(who);
  const here = (places.find((place) => place.path === asked) ?? places[0]!).path;
  const has = (path: string): boolean => places.some((place) => place.path === path);
  useKeys();
  useCommands(
    [
      ...places.map((place) => ({ name: `Go to ${place.name}`, run: () => go(place.path) })),
      ...(["system", "light", "dark"] as const).map((one) => ({ name: `Colours: ${one}`, run: () => choose(one) })),
      ...(who.requires_token ? [{ name: "Sign out", run: signOut }] : []),
    ],
    [who],
  );
  useEffect(() => {
    document.title = `${PLACES.find((place) => place.path === here)?.name ?? "Warmcell"} · Warmcell`;
  }, [here]);
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <header class="rail">
        <a class="brand" href="#/run" aria-label="Warmcell">
          <Mark />
          <span>Warmcell</span>
        </a>
        <nav aria-label="Views">
          {places.map((place) => (
            <a href={`#/${place.path}`} aria-current={here === place.path ? "page" : undefined}>
              {place.icon}
              <span>{place.name}</span>
            </a>
          ))}
        </nav>
        <div class="rail-foot">
          <button class="quiet palette-button" aria-label="Commands Ctrl K" onClick={() => isPaletteOpen.set(true)}>
            <IconSearch />
            <span>Commands</span>{" "}
            <kbd>Ctrl K</kbd>
          </button>
          <ThemeButton />
          {who.requires_token && (
            <button class="quiet sign-out" aria-label={`Signed in as ${who.name}. Sign out`} onClick={signOut}>
              <IconUser />
              <span class="who">{who.name}</span>
              <IconLeave />
            </button>
          )}
          <Status />
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {state === "offline" && (
          <div class="banner" role="status">
            <span class="spinner" aria-hidden="true" /> The server does not answer. Trying again until it does…
          </div>
        )}
        {has("run") && <Kept isShown={here === "run"}><Run /></Kept>}
        {here === "sandboxes" && (sandbox === undefined ? <Sandboxes /> : <SandboxView key={sandbox} id={sandbox} tab={tab ?? "cells"} />)}
        {here === "activity" && <Activity />}
        {here === "usage" && <UsageView />}
        {here === "audit" && <AuditView />}
        {here === "doctor" && <Doctor />}
      </main>
      <Palette />
    </div>
  );
}

/** A view that goes on while another one is looked at: its program may be running. */
function Kept({ isShown, children }: { isShown: boolean; children: ComponentChildren }) {
  return <div class="kept" hidden={!isShown}>{children}</div>;
}

function Status() {
  const { state } = useStore(connection);
  return (
    <p class={`status ${state}`} role="status">
      <span class="dot" aria-hidden="true" />
      <span>{state === "online" ? "Connected" : "Reconnecting"}</span>
    </p>
  );
}

function ThemeButton() {
  const held = useStore(theme);
  const next: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
  const icon = { system: <IconAuto />, light: <IconSun />, dark: <IconMoon /> }[held];
  const name = { system: "System colours", light: "Light", dark: "Dark" }[held];
  return (
    <button class="quiet theme-button" onClick={() => choose(next[held])} aria-label={`Colours: ${name}. Change`}>
      {icon}
      <span>{name}</span>
    </button>
  );
}

function useKeys(): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.composedPath()[0] as HTMLElement;
      if (target.closest?.(".screen-box")) return; // those keys are the shell's
      const isTyping = target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName ?? "");
      const opens = (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !isTyping);
      if (!opens) return;
      event.preventDefault();
      isPaletteOpen.set(true);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

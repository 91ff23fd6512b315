// How each language is coloured, loaded when it is first used; what people call it; and a first program.

import { StreamLanguage, type LanguageSupport } from "@codemirror/language";
import type { Extension } from "@codemirror/state";

type Loader = () => Promise<LanguageSupport | Extension>;

const LOADERS: Record<string, Loader> = {
  python: async () => (await import("@codemirror/lang-python")).python(),
  javascript: async () => (await import("@codemirror/lang-javascript")).javascript(),
  typescript: async () => (await import("@codemirror/lang-javascript")).javascript({ typescript: true }),
  rust: async () => (await import("@codemirror/lang-rust")).rust(),
  c: async () => (await import("@codemirror/lang-cpp")).cpp(),
  cpp: async () => (await import("@codemirror/lang-cpp")).cpp(),
  go: async () => (await import("@codemirror/lang-go")).go(),
  java: async () => (await import("@codemirror/lang-java")).java(),
  php: async () => (await import("@codemirror/lang-php")).php(),
  sql: async () => (await import("@codemirror/lang-sql")).sql(),
  wasm: async () => (await import("@codemirror/lang-wast")).wast(),
  command: async () => StreamLanguage.define((await import("@codemirror/legacy-modes/mode/shell")).shell),
  ruby: async () => StreamLanguage.define((await import("@codemirror/legacy-modes/mode/ruby")).ruby),
  perl: async () => StreamLanguage.define((await import("@codemirror/legacy-modes/mode/perl")).perl),
  lua: async () => StreamLanguage.define((await import("@codemirror/legacy-modes/mode/lua")).lua),
  r: async () => StreamLanguage.define((await import("@codemirror/legacy-modes/mode/r")).r),
};

const SUFFIXES: Record<string, string> = {
  py: "python", js: "javascript", mjs: "javascript", cjs: "javascript", ts: "typescript", rs: "rust", c: "c", h: "c",
  cpp: "cpp", cc: "cpp", hpp: "cpp", go: "go", java: "java", php: "php", sql: "sql", wat: "wasm", sh: "command",
  rb: "ruby", pl: "perl", lua: "lua", r: "r",
};

const NAMES: Record<string, string> = {
  python: "Python", javascript: "JavaScript", typescript: "TypeScript", rust: "Rust", command: "Shell", c: "C",
  cpp: "C++", go: "Go", java: "Java", ruby: "Ruby", php: "PHP", perl: "Perl", lua: "Lua", r: "R", sql: "SQL",
  wasm: "WebAssembly",
};

export const nameOf = (language: string): string => NAMES[language] ?? language;
export const languageOfSuffix = (suffix: string): string => SUFFIXES[suffix] ?? "";

export async function colouring(language: string): Promise<Extension> {
  const load = Object.hasOwn(LOADERS, language) ? LOADERS[language] : undefined;
  return load === undefined ? [] : load().catch(() => []);
}

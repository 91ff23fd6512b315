// A CodeMirror in a shadow root: there its styles are adopted, and the page needs no rule that allows inline ones.

import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { bracketMatching, indentOnInput, indentUnit } from "@codemirror/language";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, Prec, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers, placeholder } from "@codemirror/view";
import { useEffect, useRef } from "preact/hooks";
import { colouring } from "./languages";
import { theme } from "./theme";

export type EditorProps = {
  /** What it begins with, and begins anew with at another `revision`: in between the text is the editor's own. */
  code: string;
  revision?: unknown;
  language: string;
  label: string;
  onChange?: (code: string) => void;
  onRun?: () => void;
  isCompact?: boolean;
};

function common(isCompact: boolean): Extension[] {
  return [
    isCompact ? [] : [lineNumbers(), highlightActiveLine()],
    history(),
    drawSelection(),
    indentOnInput(),
    indentUnit.of("    "),
    bracketMatching(),
    closeBrackets(),
    highlightSelectionMatches(),
    EditorView.lineWrapping,
    // Escape and then Tab leaves the editor, for those who have no pointer.
    keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, indentWithTab]),
    theme,
  ];
}

export function Editor({ code, revision = 0, language, label, onChange, onRun, isCompact = false }: EditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const languageSlot = useRef(new Compartment());
  const calls = useRef({ onChange, onRun });
  calls.current = { onChange, onRun };

  useEffect(() => {
    const element = host.current!;
    const root = element.shadowRoot ?? element.attachShadow({ mode: "open", delegatesFocus: true });
    const run = () => (calls.current.onRun?.(), calls.current.onRun !== undefined);
    const made = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: code,
        extensions: [
          Prec.highest(keymap.of([{ key: "Mod-Enter", run }, { key: "Shift-Enter", run }])),
          common(isCompact),
          calls.current.onChange === undefined ? EditorState.readOnly.of(true) : placeholder("Write a program…"),
          languageSlot.current.of([]),
          EditorView.contentAttributes.of({ "aria-label": label }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) calls.current.onChange?.(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = made;
    return () => made.destroy();
  }, []);

  useEffect(() => {
    const held = view.current!.state.doc.toString();
    if (held !== code) view.current!.dispatch({ changes: { from: 0, to: held.length, insert: code } });
  }, [revision]);

  useEffect(() => {
    let isCurrent = true;
    void colouring(language).then((found) => {
      if (isCurrent) view.current?.dispatch({ effects: languageSlot.current.reconfigure(found) });
    });
    return () => void (isCurrent = false);
  }, [language]);

  return <div class="editor" ref={host} />;
}

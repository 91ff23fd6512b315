// xterm.js writes rules into <style> elements and colours into style attributes, both of which the page's
// Content-Security-Policy refuses. So while it is opened, what it gets for a <style> is an element that fills a sheet of
// the document's own, and what it draws is styled by the object model; both are allowed. The parts of it that this leans
// on are private: tests/page/test_sandbox_view.py notices when they move.

import type { Terminal } from "@xterm/xterm";

/** Opens it; what is returned takes its sheets away again. */
export function openWithAllowedStyles(terminal: Terminal, box: HTMLElement): () => void {
  const sheets = new Set<CSSStyleSheet>();
  const make = document.createElement.bind(document) as (name: string) => HTMLElement;
  document.createElement = ((name: string) => (name === "style" ? elementOfSheet(make("div"), sheets) : make(name))) as Document["createElement"];
  try {
    terminal.open(box);
  } finally {
    delete (document as Partial<Document>).createElement;
  }
  allowColours(terminal);
  return () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.has(sheet));
  };
}

function elementOfSheet(element: HTMLElement, sheets: Set<CSSStyleSheet>): HTMLElement {
  const sheet = new CSSStyleSheet();
  sheets.add(sheet);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  element.hidden = true;
  Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  return element;
}

type RowFactory = { _addStyle: (element: HTMLElement, style: string) => void };

function allowColours(terminal: Terminal): void {
  const inner = terminal as unknown as { _core: { _renderService: { _renderer: { value: { _rowFactory: RowFactory } } } } };
  inner._core._renderService._renderer.value._rowFactory._addStyle = (element, style) => void (element.style.cssText += style);
}

// What was written, for as long as the tab is open.

const KEY = "warmcell.draft.";

export const Drafts = {
  language: (): string | null => sessionStorage.getItem("warmcell.language"),
  code: (language: string): string | null => sessionStorage.getItem(KEY + language),
  keep(language: string, code: string, next: string = language): void {
    try {
      sessionStorage.setItem(KEY + language, code);
      sessionStorage.setItem("warmcell.language", next);
    } catch {
      // A program too large for the browser's store is kept by the editor alone.
      sessionStorage.removeItem(KEY + language);
    }
  },
};

// A question before something that cannot be taken back.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";

type Question = { title: string; text: string; verb: string; answer: (isYes: boolean) => void };

export function useDialog(): { confirm: (title: string, text: string, verb: string) => Promise<boolean>; dialog: ComponentChildren } {
  const [question, setQuestion] = useState<Question | null>(null);
  const box = useRef<HTMLDialogElement | null>(null);
  const confirm = (title: string, text: string, verb: string) =>
    new Promise<boolean>((resolve) => setQuestion({ title, text, verb, answer: resolve }));
  const settle = (isYes: boolean) => {
    question?.answer(isYes);
    setQuestion(null);
  };
  const dialog = question && (
    <dialog
      class="confirm"
      aria-label={question.title}
      ref={(element) => {
        if (element && !element.open) element.showModal();
        box.current = element;
      }}
      onClose={() => settle(false)}
    >
      <h2>{question.title}</h2>
      <p class="note">{question.text}</p>
      <div class="confirm-buttons">
        <button onClick={() => settle(false)}>Cancel</button>
        <button class="primary destructive" onClick={() => settle(true)}>{question.verb}</button>
      </div>
    </dialog>
  );
  return { confirm, dialog };
}

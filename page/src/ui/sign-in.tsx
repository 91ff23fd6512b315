// Shown in place of everything else when the server asks for a token.

import { useState } from "preact/hooks";
import { back, connection } from "../api/connection";
import { useStore } from "../api/store";
import { keepToken, token } from "../api/token";

export function SignIn() {
  const { message } = useStore(connection);
  const [typed, setTyped] = useState("");
  const hadToken = token() !== null;
  return (
    <main class="sign-in">
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          keepToken(typed.trim());
          back();
        }}
      >
        <Mark />
        <h1>Sign in to Warmcell</h1>
        <p class="note">This server asks for a token. It stays in this tab and is forgotten when the tab is closed.</p>
        <label class="field">
          <span>Token</span>
          <input type="password" autocomplete="off" required autofocus value={typed} onInput={(event) => setTyped(event.currentTarget.value)} placeholder="wc_…" />
        </label>
        {hadToken && <p class="problem" role="alert">That token was not accepted: {message}.</p>}
        <button class="primary" type="submit">Sign in</button>
        <p class="note">
          Make one with <code>warmcell token new NAME</code>, or start the server with <code>--open</code>.
        </p>
      </form>
    </main>
  );
}

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" width="28" height="28" aria-hidden="true">
      <path d="M16 2.5 27.7 9.25v13.5L16 29.5 4.3 22.75V9.25z" class="mark-cell" />
      <path d="M16 9.2c3.6 3 5.2 5.5 5.2 8.2a5.2 5.2 0 0 1-10.4 0c0-1.9.9-3.3 2.2-4.6.2 1.5.8 2.3 1.7 2.6-.2-2.2.1-4.2 1.3-6.2z" class="mark-flame" />
    </svg>
  );
}

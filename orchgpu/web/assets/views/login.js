// Login with a key of the scheduler. The key goes into one request's body, and never into an
// address or the browser's storage; the session's cookie is out of reach of scripts.
import { login } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { ErrorLine } from "../parts/page.js";

export function LoginView() {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await login(new FormData(event.target).get("key").trim());
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  return html`
    <main class="alone">
      <form class="login panel stack" onSubmit=${submit}>
        <img src="assets/icon.svg" alt="" width="40" height="40" />
        <h1>orchgpu</h1>
        <p>Log in with a key of the scheduler: <code>NAME:SECRET</code>, as <code>ssgmd keys add</code> prints it.</p>
        <label class="field stack text">Key <input name="key" type="password" autocomplete="current-password" required autofocus /></label>
        ${error && html`<${ErrorLine} error=${error} />`}
        <button class="primary" disabled=${busy}>Log in</button>
      </form>
    </main>
  `;
}

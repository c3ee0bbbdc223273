// Drain of a host or device by name, and what is drained now.
import { html, useState } from "../core/html.js";
import { Confirm } from "../parts/dialog.js";
import { drainQuestion } from "./drain.js";

export function Drain({ drained, onDone }) {
  const [target, setTarget] = useState("");
  const [asked, setAsked] = useState(null);
  const ask = (name, isDrained) => setAsked(drainQuestion(name, isDrained, onDone));
  return html`
    <section class="panel" aria-label="Drain">
      <header class="panel-head"><h2>Drain</h2></header>
      <p class="muted pad">A drained host or device takes no new lease; running ones end as usual.</p>
      <form class="drain" onSubmit=${(event) => {
        event.preventDefault();
        ask(target.trim(), false);
      }}>
        <label>Host or device <input value=${target} onInput=${(event) => setTarget(event.target.value)} required placeholder="gpu1 or gpu1/0" /></label>
        <button>Drain</button>
        <button type="button" disabled=${!target.trim()} onClick=${() => ask(target.trim(), true)}>Undrain</button>
      </form>
      <ul class="rows">${drained.map((name) => html`
        <li class="setting" key=${name}><span class="mono">${name}</span>
          <button type="button" class="small" onClick=${() => ask(name, true)}>Undrain<span class="visually-hidden"> ${name}</span></button></li>`)}
      </ul>
      <${Confirm} asked=${asked} onClose=${() => setAsked(null)} />
    </section>
  `;
}

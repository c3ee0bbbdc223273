// One parameter: its value, and for an operator a field that changes it.
import { post } from "../core/api.js";
import { about, capital } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { attempt } from "../core/notices.js";

const shownValue = (value) => (value === null || value === undefined ? "none" : String(value));

/** The sentences are those of docs/scheduler.md: without their marks of code. */
const plain = (meaning) => capital(meaning.replaceAll("`", ""));

/** ". Now 7 d" behind a length of more than a minute, which has its value in seconds. */
const lengthOf = ({ name, value }) =>
  name.endsWith("_s") && !name.endsWith("per_s") && value > 60 ? html`. Now <span class="number">${about(value)}</span>` : "";

/** The server reads the text as `ssgm set` does: a number, a duration, "none", "default". */
export const change = (name, text) =>
  attempt(() => post("/settings", { name, value: text.trim() }), `${name} is ${text}.`);

export function Setting({ item, writes, onDone }) {
  const [edited, setEdited] = useState(null); // the text in the field, null while it is untouched
  const before = shownValue(item.value);
  const save = async (event) => {
    event.preventDefault();
    if (await change(item.name, edited)) {
      setEdited(null);
      onDone();
    }
  };
  const id = `setting-${item.name}`;
  const reset = async () => (await change(item.name, "default")) && onDone();
  return html`
    <li class="setting">
      <div><label for=${id} class="mono">${item.name}</label>${item.overridden && html` <span class="tag accent">changed</span>`}
        ${item.meaning && html`<p class="muted">${plain(item.meaning)}${lengthOf(item)}</p>`}</div>
      ${writes && item.settable
        ? html`
          <form onSubmit=${save}>
            ${item.overridden && edited === null && html`<button type="button" class="small quiet" onClick=${reset}>Default</button>`}
            ${edited !== null && edited !== before && html`<button class="primary small">Save</button>`}
            <input id=${id} value=${edited ?? before} autocomplete="off" spellcheck="false"
              onInput=${(event) => setEdited(event.target.value)} onKeyDown=${(event) => event.key === "Escape" && setEdited(null)} />
          </form>`
        : html`<output id=${id} class="mono">${before}</output>`}
    </li>
  `;
}

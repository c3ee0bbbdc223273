// One parameter: its value, and for an operator a field that changes it.
import { post } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { attempt } from "../core/notices.js";

const shownValue = (value) => (value === null || value === undefined ? "none" : String(value));

/** A number as a number; every other text is a word of the scheduler: "none", "default", "10m". */
const typed = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text.trim());

export const change = (name, text) =>
  attempt(() => post("/settings", { name, value: typed(text) }), `${name} is ${text}.`);

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
      <div><label for=${id} class="mono">${item.name}</label>${item.changed && html` <span class="tag accent">changed</span>`}
        ${item.help && html`<p class="muted">${item.help}</p>`}</div>
      ${writes
        ? html`
          <form onSubmit=${save}>
            ${item.changed && edited === null && html`<button type="button" class="small quiet" onClick=${reset}>Default</button>`}
            ${edited !== null && edited !== before && html`<button class="primary small">Save</button>`}
            <input id=${id} value=${edited ?? before} autocomplete="off" spellcheck="false"
              onInput=${(event) => setEdited(event.target.value)} onKeyDown=${(event) => event.key === "Escape" && setEdited(null)} />
          </form>`
        : html`<output id=${id} class="mono">${before}</output>`}
    </li>
  `;
}

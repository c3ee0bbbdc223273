// Settings: parameters, policy and quotas of the scheduler; drain. Only an operator changes them.
import { mayOperate, post, session } from "../core/api.js";
import { html, useState } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { useResource } from "../core/resource.js";
import { useStore } from "../core/store.js";
import { Confirm } from "../parts/dialog.js";
import { Empty, Page, Search, Waiting } from "../parts/page.js";
import { drainQuestion } from "./drain.js";

export function SettingsView() {
  const current = useStore(session);
  const { data, error, reload } = useResource("/settings", { kinds: ["parameters", "policy", "host", "device"] });
  const [text, setText] = useState("");
  const writes = mayOperate(current);
  return html`
    <${Page} title="Settings" error=${error}
      aside=${!writes && html`<p class="sub">Read only: the role ${current.role} does not change settings.</p>`}
      controls=${html`<${Search} label="Parameter" value=${text} onInput=${setText} />`}>
      ${!data && !error && html`<${Waiting} />`}
      ${data && html`
        <div class="settings">
          ${groups(data).map(([title, items]) => html`
            <${Group} key=${title} title=${title} writes=${writes} onDone=${reload}
              items=${items.filter((one) => one.name.toLowerCase().includes(text.toLowerCase()))} />`)}
          ${writes && html`<${Drain} drained=${data.drained ?? []} onDone=${reload} />`}
        </div>`}
    <//>
  `;
}

/** [[title, items]] of {policies, parameters, quotas}; each a list of {name, value, …} or a mapping. */
function groups(data) {
  const titles = { policies: "Policy", policy: "Policy", parameters: "Parameters", quotas: "Quotas" };
  return Object.entries(titles)
    .filter(([key]) => data[key] !== undefined && data[key] !== null)
    .map(([key, title]) => [title, asItems(data[key], key)]);
}

function asItems(value, key) {
  if (Array.isArray(value)) return value;
  if (typeof value !== "object") return [{ name: key, value }];
  return Object.entries(value).map(([name, one]) =>
    one !== null && typeof one === "object" && "value" in one ? { name, ...one } : { name, value: one });
}

function Group({ title, items, writes, onDone }) {
  return html`
    <section class="panel" aria-label=${title}>
      <header class="panel-head"><h2>${title}</h2><span class="muted">${items.length}</span></header>
      ${items.length === 0 && html`<${Empty} title="Nothing here." />`}
      <ul class="rows">${items.map((item) => html`<${Setting} key=${item.name} item=${item} writes=${writes && item.settable !== false} onDone=${onDone} />`)}</ul>
    </section>
  `;
}

const shownValue = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? ""));

function Setting({ item, writes, onDone }) {
  const [edited, setEdited] = useState(null); // the text in the field, null while it is untouched
  const save = async (event) => {
    event.preventDefault();
    if (await attempt(() => post("/settings", { name: item.name, value: edited }), `${item.name} is ${edited}.`)) {
      setEdited(null);
      onDone();
    }
  };
  const id = `setting-${item.name}`;
  const help = item.meaning ?? item.help ?? item.source;
  return html`
    <li class="setting">
      <div><label for=${id} class="mono">${item.name}</label>${help && html`<p class="muted">${help}</p>`}</div>
      ${writes
        ? html`
          <form onSubmit=${save}>
            ${item.choices
              ? html`<select id=${id} value=${edited ?? shownValue(item.value)} onChange=${(event) => setEdited(event.target.value)}>
                  ${item.choices.map((one) => html`<option key=${one} value=${one} selected=${one === (edited ?? shownValue(item.value))}>${one}</option>`)}</select>`
              : html`<input id=${id} value=${edited ?? shownValue(item.value)} autocomplete="off" spellcheck="false"
                  onInput=${(event) => setEdited(event.target.value)} onKeyDown=${(event) => event.key === "Escape" && setEdited(null)} />`}
            ${edited !== null && edited !== shownValue(item.value) && html`<button class="primary small">Save</button>`}
          </form>`
        : html`<output id=${id} class="mono">${shownValue(item.value)}</output>`}
    </li>
  `;
}

function Drain({ drained, onDone }) {
  const [target, setTarget] = useState("");
  const [asked, setAsked] = useState(null);
  return html`
    <section class="panel" aria-label="Drain">
      <header class="panel-head"><h2>Drain</h2></header>
      <p class="muted pad">A drained host or device takes no new lease; running ones end as usual.</p>
      <form class="drain" onSubmit=${(event) => {
        event.preventDefault();
        setAsked(drainQuestion(target.trim(), false, onDone));
      }}>
        <label>Host or device <input value=${target} onInput=${(event) => setTarget(event.target.value)} required placeholder="gpu1 or gpu1/0" /></label>
        <button>Drain</button>
        <button type="button" disabled=${!target.trim()} onClick=${() => setAsked(drainQuestion(target.trim(), true, onDone))}>Undrain</button>
      </form>
      ${drained.length > 0 && html`
        <ul class="rows">${drained.map((one) => html`
          <li class="setting" key=${one}><span class="mono">${one}</span>
            <button type="button" class="small" onClick=${() => setAsked(drainQuestion(one, true, onDone))}>Undrain<span class="visually-hidden"> ${one}</span></button></li>`)}
        </ul>`}
      <${Confirm} asked=${asked} onClose=${() => setAsked(null)} />
    </section>
  `;
}

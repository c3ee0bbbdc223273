// Settings: policy, parameters and quotas of the scheduler; drain. Only an operator changes them.
import { post } from "../core/api.js";
import { about, capital } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { useResource } from "../core/resource.js";
import { Confirm, drainQuestion } from "../parts/dialog.js";
import { Page, Search, Waiting } from "../parts/page.js";

export function SettingsView() {
  const { data, error, reload } = useResource("/settings", { kinds: ["parameters", "policy", "host", "device"] });
  const [text, setText] = useState("");
  const writes = data?.may_change ?? false;
  const fits = ({ name }) => name.toLowerCase().includes(text.toLowerCase());
  const groups = data ? groupsOf(data) : [];
  return html`
    <${Page} title="Settings" error=${error}
      aside=${data && !writes && html`<p class="sub">Read only: an operator's key changes them.</p>`}
      controls=${html`<${Search} label="Parameter" value=${text} onInput=${setText} />`}>
      ${!data && !error && html`<${Waiting} />`}
      ${data && html`
        <div class="settings">
          <${Policies} data=${data} writes=${writes} onDone=${reload} />
          ${writes && html`<${Drain} drained=${data.drained} onDone=${reload} />`}
          ${groups.map(([title, items, added]) => html`
            <section class="panel" key=${title} aria-label=${title}>
              <header class="panel-head"><h2>${title}</h2><span class="muted">${items.length || ""}</span></header>
              ${!items.length && html`<p class="muted pad">No tenant has a quota or a weight of its own: none is limited, and each has the weight 1.</p>`}
              <ul class="rows">${items.filter(fits).map((item) => html`
                <${Setting} key=${item.name} item=${item} writes=${writes} onDone=${reload} />`)}</ul>
              ${writes && added && html`<${Added} hint=${added} onDone=${reload} />`}
            </section>`)}
        </div>`}
    <//>
  `;
}

/** [[title, items, the form of a new name]] */
const groupsOf = (data) => [
  ["Quotas and weights", data.quotas, "quota.TENANT.devices"],
  ["Parameters", data.parameters, null],
];

const LIMITS = ["quota.TENANT.devices", "quota.TENANT.memory_mib", "quota.TENANT.compute_pct", "weight.TENANT"];

function Added({ hint, onDone }) {
  const add = async (event) => {
    event.preventDefault();
    const form = event.target;
    const { name, value } = Object.fromEntries(new FormData(form));
    if (await change(name.trim(), value)) {
      form.reset();
      onDone();
    }
  };
  return html`
    <form class="drain" onSubmit=${add}>
      <label>New quota or weight <input name="name" required placeholder=${hint} list="limits" autocomplete="off" /></label>
      <datalist id="limits">${LIMITS.map((one) => html`<option key=${one} value=${one} />`)}</datalist>
      <label>Value <input name="value" required placeholder="8" autocomplete="off" /></label>
      <button>Add</button>
    </form>
    <p class="muted pad last">TENANT is a name, or * for all tenants without a limit of their own.</p>
  `;
}

// The queue policy: which one is in force, what each promises, and the parameters of the current one.
export function Policies({ data, writes, onDone }) {
  const current = data.policies.find((one) => one.name === "policy").value;
  const [asked, setAsked] = useState(null);
  const ask = (name) => setAsked({
    title: `Serve the queue by ${name}?`, text: "It is in force at once; no lease is lost.", action: "Change the policy",
    act: async () => (await change("policy", name)) && onDone(),
  });
  return html`
    <section class="panel" aria-label="Policy">
      <header class="panel-head"><h2>Policy</h2><span class="tag accent">${current}</span></header>
      ${data.installed.length > 0 && html`
        <div class="table-wrap" tabIndex="0" role="region" aria-label="Installed policies">
          <table class="table plain">
            <thead><tr><th scope="col">Policy</th><th scope="col">Next is</th><th scope="col">Bound on waiting</th><th scope="col">May starve</th>
              ${writes && html`<th scope="col"><span class="visually-hidden">Action</span></th>`}</tr></thead>
            <tbody>${data.installed.map((one) => html`
              <tr key=${one.name}>
                <th scope="row" class="mono">${one.name}</th><td class="wrap">${one.summary}</td><td class="wrap">${one.wait_bound || "none"}</td><td class="wrap">${one.starves || "–"}</td>
                ${writes && html`<td class="end">${one.name === current ? "in force" : html`<button type="button" class="small" onClick=${() => ask(one.name)}>Use<span class="visually-hidden"> ${one.name}</span></button>`}</td>`}
              </tr>`)}
            </tbody>
          </table>
        </div>`}
      <ul class="rows">${data.policies.filter((one) => one.name !== "policy").map((item) => html`
        <${Setting} key=${item.name} item=${item} writes=${writes} onDone=${onDone} />`)}</ul>
      <${Confirm} asked=${asked} onClose=${() => setAsked(null)} />
    </section>
  `;
}

// Drain of a host or device by name, and what is drained now.
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

// One parameter: its value, and for an operator a field that changes it.
const shownValue = (value) => (value === null || value === undefined ? "none" : String(value));

/** The sentences are those of docs/how-to/scheduler.md: without their marks of code. */
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
      ${writes
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

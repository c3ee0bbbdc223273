// Settings: policy, parameters and quotas of the scheduler; drain. Only an operator changes them.
import { post } from "../core/api.js";
import { about, capital } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { useResource } from "../core/resource.js";
import { confirm, drainQuestion } from "../parts/dialog.js";
import { Page, Panel, Search, Waiting, contains } from "../parts/page.js";
import { Table } from "../parts/table.js";

export function SettingsView() {
  const { data, error, reload } = useResource("/settings", { kinds: ["parameters", "policy", "host", "device"] });
  const [text, setText] = useState("");
  const writes = data?.may_change ?? false;
  const fits = ({ name }) => contains(text, name);
  const groups = data ? groupsOf(data) : [];
  return html`
    <${Page} title="Settings" error=${error}
      aside=${data && !writes && "Read only: an operator's key changes them."}
      controls=${html`<${Search} label="Parameter" value=${text} onInput=${setText} />`}>
      ${!data && !error && html`<${Waiting} />`}
      ${data && html`
        <div class="stack">
          <${Policies} data=${data} writes=${writes} onDone=${reload} />
          ${writes && html`<${Drain} drained=${data.drained} onDone=${reload} />`}
          ${groups.map(([title, items, added]) => html`
            <${Panel} key=${title} title=${title} aside=${`${items.length || ""}`}>
              ${!items.length && html`<p class="entry muted">No tenant has a quota or a weight of its own: none is limited, and each has the weight 1.</p>`}
              <ul>${items.filter(fits).map((item) => html`
                <${Setting} key=${item.name} item=${item} writes=${writes} onDone=${reload} />`)}</ul>
              ${writes && added && html`<${Added} hint=${added} onDone=${reload} />`}
            <//>`)}
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
    <form class="form row" onSubmit=${add}>
      <label class="field stack fine">New quota or weight <input name="name" required placeholder=${hint} list="limits" autocomplete="off" /></label>
      <datalist id="limits">${LIMITS.map((one) => html`<option key=${one} value=${one} />`)}</datalist>
      <label class="field stack fine">Value <input name="value" required placeholder="8" autocomplete="off" /></label>
      <button>Add</button>
    </form>
    <p class="entry muted">TENANT is a name, or * for all tenants without a limit of their own.</p>
  `;
}

// The queue policy: which one is in force, what each promises, and the parameters of the current one.
export function Policies({ data, writes, onDone }) {
  const current = data.policies.find((one) => one.name === "policy").value;
  const ask = (name) => confirm({
    title: `Serve the queue by ${name}?`, text: "It is in force at once; no lease is lost.", action: "Change the policy",
    act: async () => (await change("policy", name)) && onDone(),
  });
  const columns = [
    { label: "Policy", head: true, cell: (one) => html`<span class="mono">${one.name}</span>` },
    { label: "Next is", kind: "wrap", cell: (one) => one.summary },
    { label: "Bound on waiting", kind: "wrap", cell: (one) => one.wait_bound || "none" },
    { label: "May starve", kind: "wrap", cell: (one) => one.starves || "–" },
    ...(writes ? [{ key: "action", label: html`<span class="visually-hidden">Action</span>`, kind: "end", cell: ({ name }) =>
      name === current ? "in force" : html`<button type="button" class="small" onClick=${() => ask(name)}>Use<span class="visually-hidden"> ${name}</span></button>` }] : []),
  ];
  return html`
    <${Panel} title="Policy" aside=${html`<span class="chip accent">${current}</span>`}>
      ${data.installed.length > 0 && html`<${Table} label="Installed policies" rows=${data.installed} columns=${columns} />`}
      <ul>${data.policies.filter((one) => one.name !== "policy").map((item) => html`
        <${Setting} key=${item.name} item=${item} writes=${writes} onDone=${onDone} />`)}</ul>
    <//>
  `;
}

// Drain of a host or device by name, and what is drained now.
export function Drain({ drained, onDone }) {
  const [target, setTarget] = useState("");
  const ask = (name, isDrained) => confirm(drainQuestion(name, isDrained, onDone));
  return html`
    <${Panel} title="Drain">
      <p class="entry muted">A drained host or device takes no new lease; running ones end as usual.</p>
      <form class="form row" onSubmit=${(event) => {
        event.preventDefault();
        ask(target.trim(), false);
      }}>
        <label class="field stack fine">Host or device <input value=${target} onInput=${(event) => setTarget(event.target.value)} required placeholder="gpu1 or gpu1/0" /></label>
        <button>Drain</button>
        <button type="button" disabled=${!target.trim()} onClick=${() => ask(target.trim(), true)}>Undrain</button>
      </form>
      <ul>${drained.map((name) => html`
        <li class="entry row" key=${name}><span class="mono">${name}</span>
          <button type="button" class="small push" onClick=${() => ask(name, true)}>Undrain<span class="visually-hidden"> ${name}</span></button></li>`)}
      </ul>
    <//>
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
    <li class="setting entry row">
      <div><label for=${id} class="mono">${item.name}</label>${item.overridden && html` <span class="chip accent">changed</span>`}
        ${item.meaning && html`<p class="fine">${plain(item.meaning)}${lengthOf(item)}</p>`}</div>
      ${writes
        ? html`
          <form class="row" onSubmit=${save}>
            ${item.overridden && edited === null && html`<button type="button" class="small quiet" onClick=${reset}>Default</button>`}
            ${edited !== null && edited !== before && html`<button class="primary small">Save</button>`}
            <input id=${id} value=${edited ?? before} autocomplete="off" spellcheck="false"
              onInput=${(event) => setEdited(event.target.value)} onKeyDown=${(event) => event.key === "Escape" && setEdited(null)} />
          </form>`
        : html`<output id=${id} class="mono">${before}</output>`}
    </li>
  `;
}

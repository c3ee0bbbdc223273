// The fleet: hosts, the devices of each, and their leases. A large fleet begins as cells, one for
// each host; the server adds them up, and a cell opens its host.
import { mayOperate, session } from "../core/api.js";
import { deployed } from "../core/deployed.js";
import { capital, count, percent, plural } from "../core/format.js";
import { html, useMemo, useState } from "../core/html.js";
import { useAll, usePages } from "../core/resource.js";
import { href, route, setValues } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Confirm, drainQuestion } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";
import { Choice, Empty, Page, Search, Waiting } from "../parts/page.js";
import { toneOf } from "../parts/state.js";
import { VirtualGrid } from "../parts/virtual.js";
import { HostPanel } from "./fleet_host.js";

const KINDS = ["device", "host", "lease"];
const DEVICES_MAX = 200; // above it, cells of hosts instead of panels with every lease
const STATES = [["", "All"], ...["busy", "idle", "drained", "suspect", "bad", "lost"].map((state) => [state, capital(state)])];

export function FleetView() {
  const { values } = useStore(route);
  const { items: hosts, error } = useAll("/fleet/summary", { kinds: KINDS, every_s: 10 });
  const devices = useMemo(() => (hosts ?? []).reduce((sum, host) => sum + host.devices, 0), [hosts]);
  const asCells = devices > DEVICES_MAX && !values.host && !values.q && !values.state;
  const crumbs = values.host && html`<a class="crumb" href=${href("fleet")}><${Icon} name="back" /> Fleet</a>`;
  return html`
    <${Page} title=${values.host ?? "Fleet"} crumbs=${crumbs} error=${error}
      aside=${hosts && !values.host && html`<p class="sub">${plural(hosts.length, "host")}, ${plural(devices, "device")}</p>`}
      controls=${html`
        <${Choice} label="State of devices" value=${values.state ?? ""} options=${STATES} onChoose=${(state) => setValues({ state })} />
        <${Search} label="Host or model" value=${values.q ?? ""} onInput=${(q) => setValues({ q })} />
      `}>
      ${hosts === null && !error && html`<${Waiting} />`}
      ${hosts?.length === 0 && html`
        <${Empty} title="No host is connected.">A machine joins with <code>gpud</code>; see docs/hosts.md.<//>`}
      ${asCells && html`<${FleetCells} hosts=${hosts} />`}
      ${hosts?.length > 0 && !asCells && html`<${HostList} host=${values.host} state=${values.state} q=${values.q} />`}
    <//>
  `;
}

function HostList(filter) {
  const current = useStore(session);
  const [asked, setAsked] = useState(null);
  const pages = usePages("/fleet", filter, { kinds: KINDS, limit: 24 });
  const all = useStore(deployed);
  const functions = useMemo(() => functionsByWarmKey(all), [all]);
  const ask = mayOperate(current) ? (target, drained) => setAsked(drainQuestion(target, drained, pages.reload)) : null;
  if (pages.loading && !pages.items.length) return html`<${Waiting} />`;
  if (!pages.items.length) return html`<${Empty} title="No host fits this filter." />`;
  return html`
    <${Key} />
    <div class="hosts">
      ${pages.items.map((host) => html`<${HostPanel} key=${host.host} host=${host} functions=${functions} onDrain=${ask} />`)}
      ${pages.next && html`
        <p class="more"><button type="button" onClick=${pages.more}>More hosts</button>
          <span>${count(pages.items.length)}${pages.total === null ? "" : ` of ${count(pages.total)}`}</span></p>`}
    </div>
    <${Confirm} asked=${asked} onClose=${() => setAsked(null)} />
  `;
}

/** Published key of a workload → the functions whose jobs start warm there. */
function functionsByWarmKey(functions) {
  const found = new Map();
  for (const { name, warm_keys: keys } of functions) {
    for (const key of keys) found.set(key, [...(found.get(key) ?? []), name]);
  }
  return found;
}

// Cells of a large fleet: one for each host, with its devices in use and two ratios.
const ORDERS = {
  name: { label: "Name", compare: (a, b) => a.host.localeCompare(b.host, "en", { numeric: true }) },
  busy: { label: "Busiest", compare: (a, b) => b.busy / b.devices - a.busy / a.devices },
  memory: { label: "Memory", compare: (a, b) => b.memory_used_ratio - a.memory_used_ratio },
};

export function FleetCells({ hosts }) {
  const [order, setOrder] = useState("name");
  const sorted = useMemo(() => [...hosts].sort(ORDERS[order].compare), [hosts, order]);
  const options = Object.entries(ORDERS).map(([name, { label }]) => [name, label]);
  return html`
    <div class="cells-head">
      <${Choice} label="Order of hosts" value=${order} options=${options} onChoose=${setOrder} />
      <p class="legend"><span><i class="swatch memory"></i>memory</span><span><i class="swatch compute"></i>compute</span></p>
    </div>
    <${VirtualGrid} label="Hosts" items=${sorted} keyOf=${(host) => host.host}
      cell=${(host) => html`<${Cell} ...${host} />`} cellWidth=${132} cellHeight=${64} />
  `;
}

function Cell({ host, state, devices, busy, memory_used_ratio: memory, compute_used_ratio: compute }) {
  const text = `${host}, ${state}: ${busy} of ${devices} devices busy, memory ${percent(100 * memory)}, compute ${percent(100 * compute)}`;
  return html`
    <a class="cell tone-${toneOf(state)}" href=${href("fleet", null, { host })} title=${text} aria-label=${text}>
      <span class="cell-name">${host}</span>
      <span class="cell-count number">${busy}/${devices}</span>
      <i class="cell-bar memory"><i style=${{ width: `${100 * memory}%` }}></i></i>
      <i class="cell-bar compute"><i style=${{ width: `${100 * compute}%` }}></i></i>
    </a>
  `;
}

// The marks of the fleet's bars.
export const Key = () => html`
  <p class="legend">
    <span><i class="mark lent"></i>lent, a colour for each tenant</span>
    <span><i class="mark used"></i>in use, as its driver reports</span>
    <span><${Icon} name="warm" size="12" />warm: the next job of that function starts without loading</span>
  </p>
`;

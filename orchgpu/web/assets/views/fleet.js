// The fleet: hosts, the devices of each, and their leases. A large fleet begins as cells, one for
// each host; the server adds them up, and a cell opens its host.
import { mayOperate, session } from "../core/api.js";
import { colourOf, deployed } from "../core/deployed.js";
import { about, ago, capital, count, duration, mebibytes, percent, plural, shortId } from "../core/format.js";
import { html, useMemo, useState } from "../core/html.js";
import { useAll, useNow, usePages, useResource } from "../core/resource.js";
import { href, route, setValues } from "../core/router.js";
import { useStore } from "../core/store.js";
import { confirm, drainQuestion } from "../parts/dialog.js";
import { Choice, Cut, Empty, Listed, Page, Panel, Search } from "../parts/page.js";
import { Icon, Meter, Ratio, State, toneOf, toned } from "../parts/state.js";
import { EndlessGrid, Table } from "../parts/table.js";

const KINDS = ["device", "host", "lease"];
const DEVICES_MAX = 200; // above it, cells of hosts instead of panels with every lease
const STATES = [["", "All"], ...["busy", "idle", "drained", "suspect", "bad", "lost"].map((state) => [state, capital(state)])];

const NO_HOST = html`<${Empty} title="No host is connected.">A machine joins with <code>gpud</code>; see docs/how-to/hosts.md.<//>`;

export function FleetView() {
  const { values } = useStore(route);
  const { items: hosts, error } = useAll("/fleet/summary", { kinds: KINDS, every_s: 10 });
  const devices = useMemo(() => (hosts ?? []).reduce((sum, host) => sum + host.devices, 0), [hosts]);
  const asCells = devices > DEVICES_MAX && !values.host && !values.q && !values.state;
  return html`
    <${Page} title=${values.host ?? "Fleet"} parent=${values.host && ["fleet", "Fleet"]} error=${error}
      aside=${hosts && !values.host && `${plural(hosts.length, "host")}, ${plural(devices, "device")}`}
      controls=${html`
        <${Choice} label="State of devices" value=${values.state ?? ""} options=${STATES} onChoose=${(state) => setValues({ state })} />
        <${Search} label="Host or model" value=${values.q ?? ""} onInput=${(q) => setValues({ q })} />
      `}>
      ${!values.host && html`<${Pools} />`}
      <${Listed} items=${hosts} error=${error} empty=${NO_HOST}>
        ${asCells ? html`<${FleetCells} hosts=${hosts} />` : html`<${HostList} host=${values.host} state=${values.state} q=${values.q} />`}
      <//>
    <//>
  `;
}

/** Pools of hosts that come and go, and warm floors; nothing without any. */
function Pools() {
  const { data } = useResource("/fleet/pools", { kinds: ["pool", "host"], every_s: 10 });
  return html`
    ${data?.pools.length > 0 && html`<${Panel} title="Pools">
      <${Table} label="Hosts by pool" columns=${POOLS} rows=${data.pools} keyOf=${(one) => one.pool} />
      ${data.notices.map((text) => html`<p class="entry muted" key=${text}>${capital(text)}</p>`)}
    <//>`}
    ${data?.floors.length > 0 && html`<${Panel} title="Kept warm">
      <${Table} label="Warm floors" columns=${FLOORS} rows=${data.floors} keyOf=${(one) => `${one.tenant}/${one.workload}`} />
      ${data.floors_left_out > 0 && html`<p class="entry muted">${data.floors_left_out} more floors</p>`}
    <//>`}
  `;
}

const FLOORS = [
  { label: "Workload", head: true, cell: ({ workload }) => workload },
  { label: "Tenant", wide: true, cell: ({ tenant }) => tenant },
  { label: "Workers", kind: "number", cell: ({ workers, workers_min }) => `${Math.min(workers, workers_min)} of ${workers_min}` },
  { label: "Missing", cell: ({ why }) => (why ? html`<${Cut} text=${why} title=${why} />` : "–") },
];

const POOLS = [
  { label: "Pool", head: true, cell: ({ pool, model, spot }) => html`<span title=${model || null}>${pool}</span>${spot && html` <span class="chip">spot</span>`}` },
  { label: "Hosts", kind: "number", cell: ({ hosts, size }) => (hosts < size ? `${hosts} of ${size}` : hosts) },
  { label: "Min–max", kind: "number", cell: ({ min, max }) => `${min}–${max}` },
  { label: "States", wide: true, cell: ({ states }) => Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ") || "–" },
  { label: "Next host", cell: (one) => html`<${NextHost} ...${one} />` },
  { label: "USD per hour", wide: true, kind: "number", cell: ({ usd_per_h }) => usd_per_h.toFixed(2) },
  { label: "Start", wide: true, kind: "number", cell: ({ start_s }) => duration(start_s) },
];

function NextHost({ expected_s, closed }) {
  const left_s = expected_s - useNow();
  if (expected_s === null) return closed ? html`<${Cut} text=${`none: ${closed}`} title=${closed} />` : "–";
  return left_s > 0 ? `in ${about(left_s)}` : "at any moment";
}

function HostList(filter) {
  const current = useStore(session);
  const pages = usePages("/fleet", filter, { kinds: KINDS, limit: 24 });
  const all = useStore(deployed);
  const functions = useMemo(() => functionsByWarmKey(all), [all]);
  const ask = mayOperate(current) ? (target, drained) => confirm(drainQuestion(target, drained, pages.reload)) : null;
  return html`
    <${Listed} ...${pages} empty=${html`<${Empty} title="No host fits this filter." />`}>
    <${Key} />
    <div class="hosts row">
      ${pages.items.map((host) => html`<${HostPanel} key=${host.host} host=${host} functions=${functions} onDrain=${ask} />`)}
      ${pages.next && html`
        <p class="row"><button type="button" onClick=${pages.more}>More hosts</button>
          <span class="muted text">${count(pages.items.length)}${pages.total === null ? "" : ` of ${count(pages.total)}`}</span></p>`}
    </div>
    <//>
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
    <div class="row">
      <${Choice} label="Order of hosts" value=${order} options=${options} onChoose=${setOrder} />
      <p class="legend row fine"><span><i class="mark memory"></i>memory</span><span><i class="mark compute"></i>compute</span></p>
    </div>
    <${EndlessGrid} label="Hosts" items=${sorted} keyOf=${(host) => host.host}
      cell=${(host) => html`<${Cell} ...${host} />`} cellWidth=${132} cellHeight=${64} />
  `;
}

function Cell({ host, state, devices, busy, memory_used_ratio: memory, compute_used_ratio: compute }) {
  const text = `${host}, ${state}: ${busy} of ${devices} devices busy, memory ${percent(100 * memory)}, compute ${percent(100 * compute)}`;
  return html`
    <a class="cell" style=${toned(toneOf(state))} href=${href("fleet", null, { host })} title=${text} aria-label=${text}>
      <strong class="cut">${host}</strong>
      <span class="muted number">${busy}/${devices}</span>
      <${Ratio} value=${memory} kind="memory" />
      <${Ratio} value=${compute} kind="compute" />
    </a>
  `;
}

// The marks of the fleet's bars.
export const Key = () => html`
  <p class="legend row fine">
    <span><i class="mark lent"></i>lent, a colour for each tenant</span>
    <span><i class="mark used"></i>in use, as its driver reports</span>
    <span><${Icon} name="warm" size="12" />warm: the next job of that function starts without loading</span>
  </p>
`;

// One host with its devices: bars of memory and compute, a segment for each lease.
const DEVICE_PX = 262; // the least width of a device with its border
const DEVICE_PX_MAX = 420;

const isDrained = (state) => /^drain/i.test(state ?? "");

export function HostPanel({ host, functions, onDrain }) {
  const devices = Math.max(1, host.devices.length);
  return html`
    <section class="host panel" aria-label="host ${host.host}"
      style=${{ flex: `${devices} 1 min(100%, ${devices * DEVICE_PX}px)`, maxWidth: `${devices * DEVICE_PX_MAX}px` }}>
      <header class="inset row text">
        <h2>${host.host}</h2>
        <${State} state=${host.state} />
        ${host.draining && html`<span class="muted">leaves by itself: ${host.draining}</span>`}
        <span class="muted desk" title="address of its gateway">${host.address}</span>
        <${LastSeen} time_s=${host.last_seen_s} />
        ${onDrain && !host.draining && html`
          <${DrainButton} target=${host.host} drained=${isDrained(host.state)} onDrain=${onDrain} />`}
      </header>
      ${host.offers && html`<p class="entry muted" title="requests may name them">${host.offers}</p>`}
      <div class="devices stack">
        ${host.devices.map((device) => html`
          <${Device} key=${device.device} host=${host.host} device=${device} functions=${functions} onDrain=${onDrain} />`)}
      </div>
    </section>
  `;
}

const DrainButton = ({ target, drained, onDrain }) => html`
  <button type="button" class="small push" onClick=${() => onDrain(target, drained)}>
    ${drained ? "Undrain" : "Drain"}<span class="visually-hidden"> ${target}</span>
  </button>
`;

function LastSeen({ time_s }) {
  const now_s = useNow();
  return html`<span class="muted number">seen ${ago(time_s, now_s)}</span>`;
}

// Above this many segments a bar would be stripes: the rest is one segment.
const SEGMENTS_MAX = 40;

function segments(leases, value, text) {
  const shown = leases.filter((lease) => lease[value] > 0).slice(0, SEGMENTS_MAX).map((lease) => ({
    value: lease[value],
    colour: colourOf("tenant", lease.tenant),
    title: `${lease.tenant ?? ""} ${shortId(lease.job)}: ${text(lease[value])}`,
  }));
  const rest = leases.slice(SEGMENTS_MAX).reduce((sum, lease) => sum + lease[value], 0);
  return rest ? [...shown, { value: rest, colour: "var(--text-muted)", title: text(rest) }] : shown;
}

function Device({ host, device, functions, onDrain }) {
  const { device: id, model, kind, health, leases = [], residents = [] } = device;
  const state = device.state ?? health;
  const name = device.index === undefined ? id : `${host}/${device.index}`;
  const measured = device.utilisation_pct ?? null;
  const facts = [...readings(device), device.detail].filter(Boolean).join(", ");
  return html`
    <article class="device stack${health && health !== "OK" ? " unhealthy" : ""}" aria-label="device ${name}">
      <header class="between"><h3 class="cut" title=${model}>${model}</h3><span class="fine mono">${kind}</span></header>
      <p class="place fine"><${State} state=${state} /><span class="cut" title=${id}>${name}</span>
        ${onDrain && html`<${DrainButton} target=${name} drained=${device.drained} onDrain=${onDrain} />`}</p>
      ${facts && html`<p class="why fine cut" title=${facts}>${facts}</p>`}
      <${Meter} label="Memory" max=${device.memory_mib} segments=${segments(leases, "memory_mib", mebibytes)}
        text="${mebibytes(device.memory_used_mib)} of ${mebibytes(device.memory_mib)}" />
      <${Meter} label="Compute" max=${device.compute_pct} mark=${measured}
        segments=${segments(leases, "compute_pct", percent)}
        text="${percent(device.compute_used_pct)} lent${measured === null ? "" : `, ${percent(measured)} in use`}" />
      ${leases.length > 0 && html`<${Leases} leases=${leases} />`}
      ${residents.length > 0 && html`
        <ul class="residents row" aria-label="warm workers">
          ${workloads(residents).map(([key, workers]) => html`
            <${WarmWorkers} key=${key} workload=${key} workers=${workers} functions=${functions.get(key)} />`)}
        </ul>`}
    </article>
  `;
}

/** Workers of one workload, by the functions that use or used it; a key of others shows none. */
function WarmWorkers({ workload, workers, functions }) {
  const name = functions?.join(", ") ?? "another workload";
  const text = `${plural(workers.length, "warm worker")} of ${functions?.join(", ") ?? workload}, ${mebibytes(workers[0].memory_mib)} each`;
  return html`<li class="chip" title=${text}><${Icon} name="warm" size="12" /><span class="cut">${name}</span>${workers.length > 1 && ` × ${workers.length}`}</li>`;
}

/** "54 °C", "310 W": as its driver reports them. */
const readings = ({ temperature_c, power_w }) =>
  [temperature_c != null && `${temperature_c} °C`, power_w != null && `${power_w} W`];

/** [[workload, its workers]] of the warm workers of a device. */
function workloads(residents) {
  const found = new Map();
  for (const one of residents) found.set(one.workload, [...(found.get(one.workload) ?? []), one]);
  return [...found];
}

const LEASES_SHOWN = 6;

function Leases({ leases }) {
  const now_s = useNow();
  return html`
    <ul class="leases stack" aria-label="leases">
      ${leases.slice(0, LEASES_SHOWN).map((lease) => html`
        <li key=${lease.lease}>
          <i class="mark" style=${{ background: colourOf("tenant", lease.tenant) }}></i>
          ${lease.job ? html`<a class="mono cut" href=${href("jobs", lease.job)} title=${lease.job}>${shortId(lease.job, 7)}</a>` : html`<span class="cut" title=${lease.lease}>${shortId(lease.lease, 12)}</span>`}
          <span class="muted cut">${lease.tenant}</span>
          <span class="number end">${mebibytes(lease.memory_mib)}</span>
          ${lease.ends_s
            ? html`<span class="number end" title="ends in ${about(Math.max(0, lease.ends_s - now_s))} at the latest">≤ ${about(Math.max(0, lease.ends_s - now_s))}</span>`
            : html`<span></span>`}
        </li>`)}
    </ul>
    ${leases.length > LEASES_SHOWN && html`<p class="fine">and ${leases.length - LEASES_SHOWN} more</p>`}
  `;
}

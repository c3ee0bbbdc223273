// One host with its devices: bars of memory and compute, a segment for each lease.
import { about, ago, mebibytes, percent, plural, shortId } from "../core/format.js";
import { colourOf } from "../core/deployed.js";
import { html } from "../core/html.js";
import { useNow } from "../core/resource.js";
import { href } from "../core/router.js";
import { Icon } from "../parts/icons.js";
import { Meter } from "../parts/meter.js";
import { State } from "../parts/state.js";

const DEVICE_PX = 262; // the least width of a device with its border
const DEVICE_PX_MAX = 420;

const isDrained = (state) => /^drain/i.test(state ?? "");

export function HostPanel({ host, functions, onDrain }) {
  const devices = Math.max(1, host.devices.length);
  return html`
    <section class="host panel" aria-label="host ${host.host}"
      style=${{ flex: `${devices} 1 min(100%, ${devices * DEVICE_PX}px)`, maxWidth: `${devices * DEVICE_PX_MAX}px` }}>
      <header>
        <h2>${host.host}</h2>
        <${State} state=${host.state} />
        ${host.draining && html`<span class="muted">leaves by itself: ${host.draining}</span>`}
        <span class="muted desk" title="address of its gateway">${host.address}</span>
        <${LastSeen} time_s=${host.last_seen_s} />
        ${onDrain && !host.draining && html`
          <${DrainButton} target=${host.host} drained=${isDrained(host.state)} onDrain=${onDrain} />`}
      </header>
      ${host.offers && html`<p class="muted" title="requests may name them">${host.offers}</p>`}
      <div class="devices">
        ${host.devices.map((device) => html`
          <${Device} key=${device.device} host=${host.host} device=${device} functions=${functions} onDrain=${onDrain} />`)}
      </div>
    </section>
  `;
}

const DrainButton = ({ target, drained, onDrain }) => html`
  <button type="button" class="small" onClick=${() => onDrain(target, drained)}>
    ${drained ? "Undrain" : "Drain"}<span class="visually-hidden"> ${target}</span>
  </button>
`;

function LastSeen({ time_s }) {
  const now_s = useNow();
  return html`<span class="muted last-seen">seen ${ago(time_s, now_s)}</span>`;
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
    <article class="device${health && health !== "OK" ? " unhealthy" : ""}" aria-label="device ${name}">
      <header>
        <h3 title=${model}>${model}</h3><span class="kind">${kind}</span>
      </header>
      <p class="model"><${State} state=${state} /><span class="place" title=${id}>${name}</span>
        ${onDrain && html`<${DrainButton} target=${name} drained=${device.drained} onDrain=${onDrain} />`}</p>
      ${facts && html`<p class="why" title=${facts}>${facts}</p>`}
      <${Meter} label="Memory" max=${device.memory_mib} segments=${segments(leases, "memory_mib", mebibytes)}
        text="${mebibytes(device.memory_used_mib)} of ${mebibytes(device.memory_mib)}" />
      <${Meter} label="Compute" max=${device.compute_pct} mark=${measured}
        segments=${segments(leases, "compute_pct", percent)}
        text="${percent(device.compute_used_pct)} lent${measured === null ? "" : `, ${percent(measured)} in use`}" />
      ${leases.length > 0 && html`<${Leases} leases=${leases} />`}
      ${residents.length > 0 && html`
        <ul class="residents" aria-label="warm workers">
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
  return html`<li title=${text}><${Icon} name="warm" size="12" /><span>${name}</span>${workers.length > 1 && ` × ${workers.length}`}</li>`;
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
    <ul class="leases" aria-label="leases">
      ${leases.slice(0, LEASES_SHOWN).map((lease) => html`
        <li key=${lease.lease}>
          <i class="swatch" style=${{ background: colourOf("tenant", lease.tenant) }}></i>
          ${lease.job ? html`<a href=${href("jobs", lease.job)} title=${lease.job}>${shortId(lease.job, 7)}</a>` : html`<span title=${lease.lease}>${shortId(lease.lease, 12)}</span>`}
          <span class="muted">${lease.tenant}</span>
          <span class="number end">${mebibytes(lease.memory_mib)}</span>
          ${lease.ends_s
            ? html`<span class="number end" title="ends in ${about(Math.max(0, lease.ends_s - now_s))} at the latest">≤ ${about(Math.max(0, lease.ends_s - now_s))}</span>`
            : html`<span></span>`}
        </li>`)}
      ${leases.length > LEASES_SHOWN && html`<li class="rest muted">and ${leases.length - LEASES_SHOWN} more</li>`}
    </ul>
  `;
}

// The fleet: hosts, the devices of each, and their leases. A large fleet begins as cells, one for
// each host; the server adds them up, and a cell opens its host.
import { mayOperate, session } from "../core/api.js";
import { deployed } from "../core/deployed.js";
import { capital, count, plural } from "../core/format.js";
import { html, useMemo, useState } from "../core/html.js";
import { useAll, usePages } from "../core/resource.js";
import { href, route, setValues } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";
import { Choice, Empty, Page, Search, Waiting } from "../parts/page.js";
import { drainQuestion } from "./drain.js";
import { FleetCells } from "./fleet_cells.js";
import { HostPanel } from "./fleet_host.js";
import { Key } from "./fleet_key.js";

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

// What surrounds each view: navigation, figures of the whole system, connection, messages, help.
import { logout, session } from "../core/api.js";
import { setDeployed } from "../core/deployed.js";
import { count, duration, nounOf, percent } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { VIEWS, helpOpen } from "../core/keys.js";
import { connection, setScheduler } from "../core/live.js";
import { announced, attempt, dismiss, notices } from "../core/notices.js";
import { useNow, useResource } from "../core/resource.js";
import { href, route } from "../core/router.js";
import { useStore } from "../core/store.js";
import { nextTheme, theme } from "../core/theme.js";
import { Confirm, Dialog } from "./dialog.js";
import { Icon, toned } from "./state.js";

export function Shell({ children }) {
  const { view } = useStore(route);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <nav class="side" aria-label="Views">
      <a class="brand" href=${href("fleet")} aria-label="orchgpu"><img src="assets/icon.svg" alt="" width="22" height="22" /><span>orchgpu</span></a>
      <ul>
        ${VIEWS.map((one) => html`
          <li key=${one.view}>
            <a href=${href(one.view)} aria-current=${one.view === (view === "runs" ? "functions" : view) ? "page" : null}>
              <${Icon} name=${one.view} /><span>${one.name}</span><kbd aria-hidden="true">g ${one.key}</kbd>
            </a>
          </li>
        `)}
      </ul>
      <${Corner} />
    </nav>
    <div class="stage">
      <${Strip} />
      <${Banner} />
      <main id="main" tabIndex="-1">${children}</main>
    </div>
    <${Notices} />
    <${Help} />
    <${Confirm} />
  `;
}

function skip(event) {
  event.preventDefault(); // the hash is the address of the view
  document.getElementById("main").focus();
}

function Strip() {
  const { data } = useResource("/overview", { kinds: ["device", "host", "lease", "queue", "job"], every_s: 10 });
  const functions = useResource("/functions", { every_s: 60 }).data;
  useEffect(() => {
    if (functions) setDeployed(functions.items);
  }, [functions]);
  const busy = data?.devices_by_state?.busy ?? 0;
  useEffect(() => {
    if (data) setScheduler(data.connected !== false);
  }, [data?.connected]);
  const figures = [
    [nounOf(data?.hosts, "host"), count(data?.hosts)],
    ["devices busy", data ? `${count(busy)} / ${count(data.devices)}` : "–"],
    [nounOf(data?.leases, "lease"), count(data?.leases)],
    ["waiting", count(data?.waiting)],
    ["running", count(data ? (data.jobs_by_state?.RUNNING ?? 0) : null)],
    ["utilisation", data?.utilisation_ratio == null ? "–" : percent(100 * data.utilisation_ratio)],
  ];
  return html`
    <header class="bar row text" aria-label="The whole system">
      ${figures.map(([name, value], at) => html`<span key=${at}><b class="number">${value}</b> ${name}</span>`)}
      <${Connection} />
    </header>
  `;
}

function Connection() {
  const { state, scheduler } = useStore(connection);
  const works = state === "live" && scheduler;
  const text = state === "lost" ? "connecting again" : !scheduler ? "scheduler away" : state;
  return html`<span class="connection row push" style=${toned(works ? "good" : "wait")}><i class="mark disc"></i>${text}</span>`;
}

const BANNER_AFTER_MS = 900; // a reload of the server is over before a banner could be read

function Banner() {
  const { state, since_ms, scheduler } = useStore(connection);
  const [late, setLate] = useState(false);
  const broken = state === "lost" || !scheduler;
  useEffect(() => {
    setLate(false);
    if (!broken) return undefined;
    const timer = setTimeout(() => setLate(true), Math.max(0, since_ms + BANNER_AFTER_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [broken, since_ms]);
  const now_s = useNow();
  if (!broken || !late) return null;
  return html`
    <p class="banner bar row text" role="status">
      <i class="mark disc" aria-hidden="true"></i>
      ${state === "lost" ? "The connection to the console is lost." : "The scheduler does not answer."}
      ${" "}The page shows the state of ${duration(Math.max(1, Math.round(now_s - since_ms / 1000)))} ago, and continues by itself.
    </p>
  `;
}

function Corner() {
  const chosen = useStore(theme);
  const current = useStore(session);
  const icon = { auto: "auto", light: "sun", dark: "moon" }[chosen];
  return html`
    <div class="corner row">
      <p class="who" title="scheduler ${current.scheduler ?? ""}">
        <strong class="text break">${current.name || "local system"}</strong><small class="muted">${current.role}${current.version ? ` · ${current.version}` : ""}</small>
      </p>
      <${Button} label="Colours: ${chosen}" icon=${icon} onClick=${nextTheme} />
      <span class="desk"><${Button} label="Keys and help (?)" icon="help" onClick=${() => helpOpen.set(true)} /></span>
      ${current.keys && html`<${Button} label="Log out" icon="leave" onClick=${() => attempt(logout, "Logged out.")} />`}
    </div>
  `;
}

const Button = ({ label, icon, onClick }) => html`
  <button type="button" class="quiet icon-only" aria-label=${label} title=${label} onClick=${onClick}><${Icon} name=${icon} /></button>
`;

const TONES = { good: "good", error: "bad", info: "run" };

const Notices = () => html`
  <div class="notices stack">
    ${useStore(notices).map((one) => html`
      <div key=${one.id} class="notice message" style=${toned(TONES[one.kind])}>
        <p>${one.text}${one.hint && html`<small>${one.hint}</small>`}</p>
        <button type="button" class="quiet icon-only" aria-label="Dismiss" onClick=${() => dismiss(one.id)}><${Icon} name="close" size="14" /></button>
      </div>
    `)}
    <p class="visually-hidden" role="status" aria-live="polite">${useStore(announced)}</p>
  </div>
`;

function Help() {
  const keys = [
    ["/", "search in this view"],
    ...VIEWS.map((one) => [`g ${one.key}`, `go to ${one.name.toLowerCase()}`]),
    ["↑ ↓", "previous and next row of a table"],
    ["Esc", "leave a field, close a dialog"],
    ["?", "this help"],
  ];
  return html`
    <${Dialog} title="Keys" open=${useStore(helpOpen)} onClose=${() => helpOpen.set(false)}>
      <dl class="keys stack" style=${{ "--gap": "6px" }}>${keys.map(([key, text]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <//>
  `;
}

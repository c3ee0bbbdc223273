// The beginning of the page: session first, then the view of the address.
import { openSession, session } from "./core/api.js";
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "./core/html.js";
import { startKeys } from "./core/keys.js";
import { startLive } from "./core/live.js";
import { announce } from "./core/notices.js";
import { route } from "./core/router.js";
import { useStore } from "./core/store.js";
import "./core/theme.js";
import { Empty, ErrorLine, Page } from "./parts/page.js";
import { Shell } from "./parts/shell.js";
import { ActivityView } from "./views/activity.js";
import { FleetView } from "./views/fleet.js";
import { FunctionView } from "./views/function.js";
import { FunctionsView } from "./views/functions.js";
import { JobView } from "./views/job.js";
import { JobsView } from "./views/jobs.js";
import { RunView } from "./views/run.js";
import { LoginView } from "./views/login.js";
import { QueueView } from "./views/queue.js";
import { SettingsView } from "./views/settings.js";

const VIEWS = {
  fleet: FleetView,
  queue: QueueView,
  jobs: JobsView,
  functions: FunctionsView,
  activity: ActivityView,
  settings: SettingsView,
};
const DETAILS = { jobs: JobView, functions: FunctionView, runs: RunView };

function App() {
  const current = useStore(session);
  const [error, setError] = useState(null);
  const open = () => openSession().then(() => setError(null), setError);
  useEffect(() => {
    open();
  }, []);
  useEffect(() => {
    if (!error) return undefined;
    const timer = setTimeout(open, 2000); // the server may be starting
    return () => clearTimeout(timer);
  }, [error]);
  if (current?.login_needed) return html`<${LoginView} />`;
  if (!current) return error && html`<main class="alone"><${ErrorLine} error=${error} /></main>`;
  return html`<${Console} key=${current.csrf} />`;
}

function Console() {
  const { view, id } = useStore(route);
  useEffect(() => startLive(), []);
  const first = useRef(true);
  useLayoutEffect(() => {
    // A new view begins at its title, as a new page would; the first one leaves the focus alone.
    // Not later than the view itself: a field in which a user types keeps the focus.
    if (!first.current) document.querySelector("main h1")?.focus({ preventScroll: true });
    first.current = false;
    announce(id ?? view);
  }, [view, id]);
  const View = (id && DETAILS[view]) || VIEWS[view];
  return html`
    <${Shell}>
      <${Guarded} key=${`${view} ${id}`}>
        ${View ? html`<${View} id=${id} />` : html`<${Page} title="Not found"><${Empty} title="There is not a view of this name." /><//>`}
      <//>
    <//>
  `;
}

// An error in one view leaves the navigation usable.
function Guarded({ children }) {
  const [error, reset] = useErrorBoundary((thrown) => console.error(thrown));
  if (!error) return children;
  return html`
    <${Page} title="This view failed">
      <${ErrorLine} error=${{ message: `${error.message}. The browser's console has the trace.` }} />
      <p><button type="button" onClick=${reset}>Load it again</button></p>
    <//>
  `;
}

startKeys();
render(html`<${App} />`, document.getElementById("app"));

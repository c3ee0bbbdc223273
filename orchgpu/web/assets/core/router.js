// Addresses of views: #/jobs/ID?state=FAILED. A hash needs nothing of the server, and a link to
// one job works from a chat.
import { store } from "./store.js";

function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return {
    view: view || "fleet",
    id: rest.length ? decodeURIComponent(rest.join("/")) : null,
    values: Object.fromEntries(new URLSearchParams(query)),
  };
}

export const route = store(parse(location.hash));
window.addEventListener("hashchange", () => route.set(parse(location.hash)));

export function href(view, id = null, values = {}) {
  const query = new URLSearchParams(
    Object.entries(values).filter(([, value]) => value !== "" && value != null),
  ).toString();
  return `#/${view}${id ? `/${encodeURIComponent(id)}` : ""}${query ? `?${query}` : ""}`;
}

export function go(address) {
  location.hash = address;
}

/** Changes filters of the current view without a new entry in the history. */
export function setValues(values) {
  const { view, id, values: before } = route.get();
  history.replaceState(null, "", href(view, id, { ...before, ...values }));
  route.set(parse(location.hash));
}

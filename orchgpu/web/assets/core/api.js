// Requests to the console's server. Each write carries the session's CSRF token; each failure
// becomes an ApiError with the server's own words.
import { store } from "./store.js";

/** The session: {role, name, csrf, scheduler, version, login_needed}; null before the first answer. */
export const session = store(null);

export class ApiError extends Error {
  constructor(status, { code = "internal", message = "", hint = "" } = {}) {
    super(message || `the server answered ${status}`);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

/** "/jobs" with {state: "FAILED", q: ""} is "/jobs?state=FAILED": empty values are left out. */
export function withQuery(path, values = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}${path.includes("?") ? "&" : "?"}${text}` : path;
}

export const urlOf = (path) => `/api${path}`;

async function request(method, path, { body, signal, headers = {} } = {}) {
  const sent = { Accept: "application/json", ...headers };
  if (method !== "GET") sent["X-CSRF-Token"] = session.get()?.csrf ?? "";
  const isFile = body instanceof Blob;
  if (body !== undefined && !isFile) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(urlOf(path), {
      method,
      signal,
      headers: sent,
      credentials: "same-origin",
      body: body === undefined || isFile ? body : JSON.stringify(body),
    });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new ApiError(0, { code: "unavailable", message: "The console's server does not answer." });
  }
  const answer = await readJson(response);
  if (response.ok) return answer;
  if (response.status === 401) session.set({ ...session.get(), login_needed: true });
  throw new ApiError(response.status, answer?.error);
}

async function readJson(response) {
  if (response.status === 204) return null;
  try {
    return await response.json();
  } catch {
    return null; // a proxy's page, or an empty body: the status alone is reported
  }
}

export const get = (path, signal) => request("GET", path, { signal });
export const post = (path, body = {}) => request("POST", path, { body });
export const put = (path, file) =>
  request("PUT", path, {
    body: file,
    headers: { "Content-Type": file.type || "application/octet-stream" },
  });

export async function openSession() {
  try {
    session.set(await get("/session"));
  } catch (error) {
    if (error.status !== 401) throw error;
    session.set({ ...session.get(), login_needed: true });
  }
}

export async function login(key) {
  session.set(await post("/session", { key }));
}

export async function logout() {
  await request("DELETE", "/session");
  session.set({ login_needed: true });
}

/** Whether the session's role may operate the fleet; what concerns one job or function is in its answer. */
export const mayOperate = (current) => current?.role === "operator";

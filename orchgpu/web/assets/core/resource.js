// Data of the server inside components: loaded, kept while it is loaded again, and loaded again
// when the stream of changes concerns it. Bursts of changes cause one request, not many.
import { get, withQuery } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { useChanges } from "./live.js";

const RELOAD_MS = 600; // as often as eyes follow a table; the stream itself has 4 batches a second
const RELOAD_ALL_MS = 2500; // a whole list is several requests

/** {data, error, loading, reload} of one path; null as path loads nothing. */
export const useResource = (path, options) => useLoaded(path, get, options);

/** All items of a list that the page needs as a whole: {items, error, reload}. */
export function useAll(path, options) {
  const { data, ...state } = useLoaded(withQuery(path, { limit: 200 }), getAll, { pause_ms: RELOAD_ALL_MS, ...options });
  return { items: data, ...state };
}

/** Pages of a list by cursor: {items, next, total, error, loading, more, reload}. */
export function usePages(path, values, { limit = 100, ...options } = {}) {
  const address = withQuery(path, { ...values, limit });
  const { data, change, ...state } = useLoaded(address, getPage, { join: withHead, ...options });
  const last = useRef([]); // of the filter before, while the first page of this one is on its way
  if (data) last.current = data.items;
  const busy = useRef(false);
  const more = useCallback(async () => {
    if (!data?.next || busy.current) return;
    busy.current = true;
    try {
      const page = await getPage(withQuery(address, { after: data.next }));
      change((before) => withTail(before, page));
    } catch {
      // the end of the list stays as it is; scrolling asks again
    } finally {
      busy.current = false;
    }
  }, [address, data?.next]);
  return { ...state, next: data?.next ?? null, total: data ? (data.total ?? null) : 0, items: last.current, more };
}

// What `load` reads of an address, and `join` makes of it and of what was there before. After an error
// the last data stay visible below it.
function useLoaded(address, load, { kinds = [], every_s = 0, pause_ms = RELOAD_MS, join = (_before, data) => data } = {}) {
  const [state, setState] = useState({ address: null, data: null, error: null });
  const own = (one) => (one.address === address ? one.data : null);
  const read = useCallback(
    async (signal) => {
      if (address === null) return;
      try {
        const data = await load(address, signal);
        setState((before) => ({ address, data: join(own(before), data), error: null }));
      } catch (error) {
        if (error.name !== "AbortError") setState((before) => ({ address, data: own(before), error }));
      }
    },
    [address],
  );
  const reload = useThrottled(read, pause_ms);
  useChanges(kinds, reload);
  useTicks(every_s, reload);
  const change = (changed) => setState((before) => (before.address === address ? { ...before, data: changed(before.data) } : before));
  const data = own(state);
  const error = state.address === address ? state.error : null;
  return { data, error, loading: address !== null && !data && !error, reload, change };
}

// A search ends early, with a cursor, when it looked at many items: an empty page is not the end.
async function getPage(address, signal) {
  let page = await get(address, signal);
  while (!page.items.length && page.next) page = await get(withQuery(address, { after: page.next }), signal);
  return page;
}

async function getAll(address, signal) {
  const items = [];
  for (let after = null, more = true; more; more = after !== null) {
    const page = await get(withQuery(address, { after }), signal);
    items.push(...page.items);
    after = page.next ?? null;
  }
  return items;
}

// The first page is new; items of later pages stay as they were loaded, without those that moved up.
function withHead(before, page) {
  if (!before?.hasTail) return page;
  const shown = new Set(page.items.map(identity));
  const tail = before.items.slice(page.items.length).filter((item) => !shown.has(identity(item)));
  return { ...before, total: page.total, items: [...page.items, ...tail] };
}

function withTail(before, page) {
  const shown = new Set(before.items.map(identity));
  const added = page.items.filter((item) => !shown.has(identity(item)));
  return { items: [...before.items, ...added], next: page.next, total: page.total ?? before.total, hasTail: true };
}

// What makes an item of any list the same item after a reload.
const identity = (item) => (item.position === undefined ? item.job : item.attempt) ?? item.host ?? item.name;

// Loads at once when `load` changes, then at most every RELOAD_MS, never twice at a time, and not
// while the page is hidden: a background tab asks once, when it is looked at again.
function useThrottled(load, pause_ms = RELOAD_MS) {
  const state = useRef({});
  useEffect(() => {
    const control = new AbortController();
    const own = { control, running: false, again: false, timer: 0, load, pause_ms };
    state.current = own;
    run(own);
    const shown = () => document.visibilityState === "visible" && own.again && run(own);
    document.addEventListener("visibilitychange", shown);
    return () => {
      control.abort();
      clearTimeout(own.timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [load]);
  return useCallback(() => run(state.current), []);
}

async function run(own) {
  if (own.running || document.visibilityState === "hidden") {
    own.again = true;
    return;
  }
  own.running = true;
  own.again = false;
  await own.load(own.control.signal);
  if (own.control.signal.aborted) return;
  own.timer = setTimeout(() => {
    own.running = false;
    if (own.again) run(own);
  }, own.pause_ms);
}

function useTicks(every_s, callback) {
  useEffect(() => {
    if (!every_s) return undefined;
    const timer = setInterval(callback, every_s * 1000);
    return () => clearInterval(timer);
  }, [every_s, callback]);
}

/** Seconds since the epoch, renewed each second: for ages and remaining times. */
export function useNow(every_ms = 1000) {
  const [now_s, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), every_ms);
    return () => clearInterval(timer);
  }, [every_ms]);
  return now_s;
}

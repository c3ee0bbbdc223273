// Data of the server inside components: loaded, kept while it is loaded again, and loaded again
// when the stream of changes concerns it. Bursts of changes cause one request, not many.
import { get, withQuery } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { useChanges } from "./live.js";

const RELOAD_MS = 600; // as often as eyes follow a table; the stream itself has 4 batches a second
const RELOAD_ALL_MS = 2500; // a whole list is several requests

/** {data, error, loading, reload} of one path; null as path loads nothing. */
export function useResource(path, { kinds = [], every_s = 0 } = {}) {
  const [state, setState] = useState({ path: null, data: null, error: null });
  const load = useCallback(
    async (signal) => {
      if (path === null) return;
      try {
        const data = await get(path, signal);
        setState({ path, data, error: null });
      } catch (error) {
        if (error.name === "AbortError") return;
        // the last data stay visible below the error
        setState((before) => ({ path, data: before.path === path ? before.data : null, error }));
      }
    },
    [path],
  );
  const reload = useThrottled(load);
  useChanges(kinds, reload);
  useTicks(every_s, reload);
  const current = state.path === path ? state : { data: null, error: null };
  return { ...current, loading: path !== null && !current.data && !current.error, reload };
}

/** Pages of a list by cursor: {items, total, error, loading, more, reload}. */
export function usePages(path, values, { kinds = [], limit = 100 } = {}) {
  const address = withQuery(path, { ...values, limit });
  const [state, setState] = useState(emptyPages(address));
  const busy = useRef(false);
  const load = useCallback(
    async (signal) => {
      try {
        const page = await getPage(address, signal);
        setState((before) => withHead(before.address === address ? before : null, address, page));
      } catch (error) {
        if (error.name !== "AbortError") setState((before) => ({ ...before, address, error }));
      }
    },
    [address],
  );
  const reload = useThrottled(load);
  useChanges(kinds, reload);
  const current = state.address === address ? state : { ...emptyPages(address), items: state.items };
  const more = useCallback(async () => {
    if (!current.next || busy.current) return;
    busy.current = true;
    try {
      const page = await getPage(withQuery(path, { ...values, limit, after: current.next }));
      setState((before) => (before.address === address ? withTail(before, page) : before));
    } catch {
      // the end of the list stays as it is; scrolling asks again
    } finally {
      busy.current = false;
    }
  }, [address, current.next]);
  return { ...current, more, reload };
}

// A search ends early, with a cursor, when it looked at many items: an empty page is not the end.
async function getPage(address, signal) {
  let page = await get(address, signal);
  while (!page.items.length && page.next) {
    page = await get(withQuery(address, { after: page.next }), signal);
  }
  return page;
}

const emptyPages = (address) => ({
  address, items: [], next: null, total: 0, error: null, loading: true, pages: 0,
});

// The first page is new; items of later pages stay as they were loaded, without those that moved up.
function withHead(before, address, page) {
  const head = { address, items: page.items, next: page.next, total: page.total ?? null,
                 error: null, loading: false, pages: 1 };
  if (!before || before.pages < 2) return head;
  const shown = new Set(page.items.map(identity));
  const tail = before.items.slice(page.items.length).filter((item) => !shown.has(identity(item)));
  return { ...head, items: [...page.items, ...tail], next: before.next, pages: before.pages };
}

function withTail(before, page) {
  const shown = new Set(before.items.map(identity));
  const added = page.items.filter((item) => !shown.has(identity(item)));
  return { ...before, items: [...before.items, ...added], next: page.next, pages: before.pages + 1,
           total: page.total ?? before.total };
}

/** All items of a list that the page needs as a whole: {items, error, reload}. */
export function useAll(path, { kinds = [], every_s = 0, limit = 200 } = {}) {
  const [state, setState] = useState({ items: null, error: null });
  const load = useCallback(
    async (signal) => {
      try {
        const items = [];
        let after = null;
        do {
          const page = await get(withQuery(path, { limit, after }), signal);
          items.push(...page.items);
          after = page.next;
        } while (after);
        setState({ items, error: null });
      } catch (error) {
        if (error.name !== "AbortError") setState((before) => ({ ...before, error }));
      }
    },
    [path, limit],
  );
  const reload = useThrottled(load, RELOAD_ALL_MS);
  useChanges(kinds, reload);
  useTicks(every_s, reload);
  return { ...state, reload };
}

/** What makes an item of any list the same item after a reload. */
export const identity = (item) =>
  (item.position === undefined ? item.job : item.attempt) ?? item.host ?? item.name;

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

// The live connection: one stream of changes for the whole page, resumed by its position.
// Views subscribe to kinds of change (device, host, pool, lease, queue, job, policy, parameters).
import { session, urlOf } from "./api.js";
import { useEffect, useRef } from "./html.js";
import { readEvents } from "./sse.js";
import { store } from "./store.js";

const RETRY_MS_MIN = 400;
const RETRY_MS_MAX = 5000;
const RETRY_MS_EVICTED = 60_000; // other pages of this key took the place of this one's stream

/** {state: "connecting" | "live" | "lost", since_ms, scheduler: true | false} */
export const connection = store({ state: "connecting", since_ms: Date.now(), scheduler: true });

const subscribers = new Set();
let stop = null;

/** Opens the stream and keeps it open, until the returned function is called. */
export function startLive() {
  stop?.();
  const control = new AbortController();
  stop = () => control.abort();
  keepOpen(control.signal);
  return stop;
}

async function keepOpen(signal) {
  let lastId = null;
  let retry_ms = RETRY_MS_MIN;
  let opened = 0;
  while (!signal.aborted) {
    try {
      await readEvents(urlOf("/events"), {
        signal,
        lastId,
        onOpen() {
          retry_ms = RETRY_MS_MIN;
          setState("live");
          // The position covers the scheduler's events; what the server adds to them is read again.
          if (opened++) publish([{ kind: "reset" }]);
        },
        onEvent(event) {
          if (event.id) lastId = event.id;
          if (event.name === "evicted") retry_ms = RETRY_MS_EVICTED;
          else receive(event);
        },
      });
    } catch {
      // the loop below reports it as a lost connection, and tries again
    }
    if (signal.aborted || session.get()?.login_needed) return;
    setState("lost");
    await pause(retry_ms * (0.75 + Math.random() / 2));
    retry_ms = Math.min(retry_ms * 1.7, RETRY_MS_MAX);
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function setState(state) {
  const before = connection.get();
  if (before.state !== state) connection.set({ ...before, state, since_ms: Date.now() });
}

function receive(event) {
  let data;
  try {
    data = JSON.parse(event.data);
  } catch {
    return; // a comment of a proxy; the next event is whole again
  }
  const changes = event.name === "changes" ? data : [{ ...data, event: event.name }];
  for (const change of changes) if (change.event === "scheduler") setScheduler(change.connected);
  publish(changes.map((change) => ({ ...change, kind: change.event })));
}

export function setScheduler(reachable) {
  const before = connection.get();
  if (before.scheduler === reachable) return;
  connection.set({ ...before, scheduler: reachable, since_ms: Date.now() });
  if (reachable) publish([{ kind: "reset" }]);
}

function publish(changes) {
  for (const subscriber of [...subscribers]) subscriber(changes);
}

/** Calls back with the changes of these kinds; `reset` and `gap` concern every kind. */
export function useChanges(kinds, callback) {
  const latest = useRef(callback);
  latest.current = callback;
  const wanted = kinds.join(" ");
  useEffect(() => {
    const names = new Set([...wanted.split(" "), "reset", "gap"]);
    const subscriber = (changes) => {
      const ours = changes.filter((change) => names.has(change.kind));
      if (ours.length) latest.current(ours);
    };
    subscribers.add(subscriber);
    return () => subscribers.delete(subscriber);
  }, [wanted]);
}

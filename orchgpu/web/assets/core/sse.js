// Server-sent events over fetch. EventSource gives up for good after one HTTP error and forgets
// its position; this reader keeps the position and leaves retries to its caller.

/** Reads one response until it ends; calls onEvent({name, data, id}) for each event. */
export async function readEvents(path, { signal, lastId, onOpen, onEvent }) {
  const headers = { Accept: "text/event-stream" };
  if (lastId) headers["Last-Event-ID"] = lastId;
  const response = await fetch(path, { headers, signal, credentials: "same-origin" });
  if (!response.ok) throw new Error(`events: the server answered ${response.status}`);
  onOpen?.();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parse = eventParser(onEvent);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    parse(value);
  }
}

/** A function that takes pieces of text as they arrive and emits whole events. */
export function eventParser(onEvent) {
  let rest = "";
  let event = { name: "message", data: [], id: null };
  return (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (event.data.length) onEvent({ ...event, data: event.data.join("\n") });
        event = { name: "message", data: [], id: null };
      } else if (!line.startsWith(":")) {
        readField(event, line);
      }
    }
  };
}

function readField(event, line) {
  const colon = line.indexOf(":");
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (name === "event") event.name = value;
  else if (name === "data") event.data.push(value);
  else if (name === "id") event.id = value;
}

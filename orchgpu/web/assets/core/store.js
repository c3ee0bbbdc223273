// A value with subscribers: the only kind of state that lives outside components.
import { useEffect, useState } from "./html.js";

export function store(initial) {
  let value = initial;
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of [...listeners]) listener(value);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The current value; the component renders again when it changes. */
export function useStore(source) {
  const [value, setValue] = useState(source.get());
  useEffect(() => {
    setValue(source.get()); // it may have changed between render and effect
    return source.subscribe(setValue);
  }, [source]);
  return value;
}

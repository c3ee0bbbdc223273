// htm bound to Preact: components are functions that return html`<div>…</div>`.
// Every other module takes its template tag and its hooks from here.
import { Fragment, createContext, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { Fragment, createContext, render };
export {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/hooks.js";

// A bar with segments: the shares of one device, or a ratio.
import { html } from "../core/html.js";

/** segments: [{value, colour, title}]; `mark` is a second, measured value: hatched, to a line. */
export function Meter({ label, text, max, segments, mark = null }) {
  const share = (value) => `${max > 0 ? Math.min(100, Math.max(0, (100 * value) / max)) : 0}%`;
  return html`
    <div class="meter">
      <div class="meter-text"><span>${label}</span><span class="number">${text}</span></div>
      <div class="meter-bar" role="img" aria-label="${label}: ${text}">
        ${segments.map(
          (one) => html`
            <i title=${one.title} style=${{ width: share(one.value), background: one.colour }}></i>
          `,
        )}
        ${mark === null ? null : html`<b style=${{ width: share(mark) }}></b>`}
      </div>
    </div>
  `;
}

export function Ratio({ value, tone = "run" }) {
  const width = `${Math.min(100, Math.max(0, 100 * (value ?? 0)))}%`;
  return html`<span class="ratio tone-${tone}" aria-hidden="true"><i style=${{ width }}></i></span>`;
}

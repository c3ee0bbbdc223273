// The marks of the fleet's bars.
import { html } from "../core/html.js";
import { Icon } from "../parts/icons.js";

export const Key = () => html`
  <p class="legend">
    <span><i class="mark lent"></i>lent, a colour for each tenant</span>
    <span><i class="mark used"></i>in use, as its driver reports</span>
    <span><${Icon} name="warm" size="12" />warm: the next job of that function starts without loading</span>
  </p>
`;

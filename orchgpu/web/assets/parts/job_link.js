// A job in a row: by its id, or on a phone by the name of its file, which people know.
import { shortId } from "../core/format.js";
import { html } from "../core/html.js";
import { href } from "../core/router.js";

export const JobLink = ({ job, name }) => html`
  <a class="mono" href=${href("jobs", job)} title=${job}>
    <span class="desk">${shortId(job)}</span><span class="phone">${name || shortId(job)}</span></a>
`;

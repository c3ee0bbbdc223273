// Outputs of one job: a preview of text and images, a download of everything.
import { urlOf } from "../core/api.js";
import { bytes, fileName } from "../core/format.js";
import { html, useEffect, useState } from "../core/html.js";
import { useResource } from "../core/resource.js";
import { Icon } from "../parts/icons.js";
import { Empty, ErrorLine } from "../parts/page.js";
import { isEnded } from "../parts/state.js";

const TEXT_MAX = 64 * 1024; // characters of a preview

export function Outputs({ path, state }) {
  // another state is another address for the hook: outputs appear when the job ends
  const { data, error } = useResource(isEnded(state) ? `${path}/outputs` : null);
  const items = data?.items ?? [];
  return html`
    <section class="panel outputs" aria-label="Outputs">
      <header class="panel-head"><h2>Outputs</h2>${items.length > 0 && html`<span class="muted">${items.length}</span>`}</header>
      ${error && html`<${ErrorLine} error=${error} />`}
      ${items.length === 0 && !error && html`<${Empty} title=${isEnded(state) ? "The job has no output." : "Outputs appear when the job has ended."} />`}
      <ul>${items.map((item, index) => html`<${Output} key=${item.name} ...${item} address=${`${urlOf(path)}/outputs/${index}`} />`)}</ul>
    </section>
  `;
}

function Output({ name, bytes: size, type, preview, address }) {
  return html`
    <li class="output">
      <p><span title=${name}>${fileName(name) || name}</span><span class="muted number">${bytes(size)}</span>
        <a href=${`${address}?download=1`} download=${fileName(name)} aria-label="Download ${name}" title=${type}><${Icon} name="download" /></a></p>
      ${preview === "image" && html`<a href=${address} target="_blank" rel="noreferrer"><img src=${address} alt="Output ${name}" loading="lazy" /></a>`}
      ${preview === "text" && html`<${TextPreview} address=${address} name=${name} />`}
    </li>
  `;
}

function TextPreview({ address, name }) {
  const [text, setText] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    readText(address, control.signal).then(setText, (error) => {
      if (error.name !== "AbortError") setText(`(no preview: ${error.message})`);
    });
    return () => control.abort();
  }, [address]);
  return text === null ? null : html`<pre tabIndex="0" aria-label="Content of ${name}">${text}</pre>`;
}

async function readText(address, signal) {
  const response = await fetch(address, { signal, credentials: "same-origin" });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  const text = await response.text();
  return text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}\n… (download it for the rest)` : text;
}

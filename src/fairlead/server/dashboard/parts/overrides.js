/** What is in force by hand and not by the configuration: marks where it applies, the list, and the trail of changes. */
import { api, usePoll } from "../api.js";
import { moment } from "../format.js";
import { html, useState } from "../html.js";
import { may, notify } from "../store.js";
import { Card, Empty, Trouble } from "./card.js";
import { Confirm } from "./dialog.js";
import { Table } from "./table.js";

const EVERY = 2000;

/** A value as people read it. @param {any} value @returns {string} */
export const told = (value) => (value === null || value === undefined ? "none" : typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name} ${told(one)}`).join(", ") : String(value));

/** The override of a gate with this end of its id, if there is one. @param {any} gate @param {string} ending */
export const overrideOf = (gate, ending) => (gate.overrides ?? []).find((/** @type {any} */ one) => one.id.endsWith(ending)) ?? null;

/** @param {{override: any}} props */
export const Mark = ({ override }) => override && html`<span class="small tone-warn" data-override=${override.id} title=${`Ends ${override.ends}`}>set by hand (configured: ${told(override.configured)})</span>`;

/** The list, and how to bring the configured value back. */
export function Overrides() {
  const { data, error, reload } = usePoll("overrides", EVERY);
  const [ending, setEnding] = useState(/** @type {any} */ (null));
  const items = data?.items ?? [];
  const act = async () => {
    await api(`overrides/${encodeURIComponent(ending.id)}`, { method: "DELETE" });
    notify("good", `${ending.what} of ${ending.where} is as configured again.`);
    reload();
  };
  return html`<${Card} title="Overrides" note=${data ? `${items.length} in force` : ""} flush>
    ${error && html`<div class="body"><${Trouble} error=${error} retry=${reload} /></div>`}
    ${data && html`<${Table} caption="Overrides in force" rows=${items} rowKey=${(/** @type {any} */ row) => row.id}
      empty=${html`<${Empty} title="No overrides.">Everything is as it is configured.</${Empty}>`} columns=${[
        { label: "Where", head: true, class: "mono", cell: (row) => row.where },
        { label: "What", cell: (row) => row.what },
        { label: "Configured", cell: (row) => told(row.configured) },
        { label: "In force", cell: (row) => html`<b>${told(row.value)}</b>` },
        { label: "Set by", cell: (row) => (row.by ? `${row.by}, ${moment(row.since)}` : "not known here") },
        { label: "Ends", class: "why", cell: (row) => row.ends },
        { label: "Reset", cell: (row) => may("operator") && html`<button type="button" class="button small-button" aria-label=${`Reset ${row.what} of ${row.where}`} onClick=${() => setEnding(row)}>Reset…</button>` },
      ]} />`}
    ${ending && html`<${Confirm} title=${`Reset ${ending.what} of ${ending.where}?`} verb="Reset" act=${act} onClose=${() => setEnding(null)}>
      <p>It is ${told(ending.value)} now, and will be ${told(ending.configured)}, as configured.</p></${Confirm}>`}
  </${Card}>`;
}

/** Who changed what. */
export function Trail() {
  const { data, error, reload } = usePoll("audit?limit=50", EVERY);
  return html`<${Card} title="Latest changes" note="newest first; since the start of this process" flush>
    ${error && html`<div class="body"><${Trouble} error=${error} retry=${reload} /></div>`}
    ${data && html`<${Table} caption="Latest changes" rows=${data.items} rowKey=${(/** @type {any} */ row) => row.number}
      empty=${html`<${Empty} title="No changes yet." />`} columns=${[
        { label: "Time", class: "mono nowrap", cell: (row) => moment(row.t) },
        { label: "Caller", cell: (row) => row.caller },
        { label: "Change", class: "why", cell: (row) => row.what },
        { label: "Before", class: "why", cell: (row) => told(row.before) },
        { label: "After", class: "why", cell: (row) => told(row.after) },
      ]} />`}
  </${Card}>`;
}

/** Who runs jobs, and which planner orders them. */
import { api, usePoll } from "../api.js";
import { count } from "../format.js";
import { html, useState } from "../html.js";
import { Badge } from "../parts/badge.js";
import { Card, Empty } from "../parts/card.js";
import { Select } from "../parts/choices.js";
import { Confirm } from "../parts/dialog.js";
import { Table } from "../parts/table.js";
import { may, notify } from "../store.js";

/** @param {{now: string, known: string[], onClose: () => void, onDone: () => void}} props */
function ChangePlanner({ now, known, onClose, onDone }) {
  const [chosen, setChosen] = useState(now);
  const act = async () => {
    await api("jobs/planner", { method: "PUT", body: { planner: chosen } });
    notify("good", `${chosen} orders the jobs now.`);
    onDone();
  };
  return html`<${Confirm} title="Which planner orders the jobs?" verb="Change the planner" ready=${chosen !== now} act=${act} onClose=${onClose}>
    <p>Counts for every executor that has none of its own, from the next decision on. What runs is not touched.</p>
    <${Select} label="Planner" value=${chosen} options=${[...new Set([now, ...known])].map((one) => [one, one])} onChange=${setChosen} />
  </${Confirm}>`;
}

export function Workers() {
  const { data } = usePoll("jobs/workers", 5000);
  const { data: planner, reload } = usePoll("jobs/planner");
  const [changing, setChanging] = useState(false);
  const own = Object.entries(planner?.executors ?? {}).map(([name, one]) => `${name}: ${one}`).join(", ");
  return html`<${Card} title="Workers" flush note=${planner && html`ordered by <b>${planner.planner}</b>${own && ` (${own})`}`}
      tools=${may("admin") && planner?.known && html`<button type="button" class="button" onClick=${() => setChanging(true)}>Change the planner…</button>`}>
    <${Table} caption="Workers" rows=${data?.workers ?? []} rowKey=${(/** @type {any} */ row) => row.id}
      empty=${html`<${Empty} title="No worker is known.">Start one with <code>fairlead worker</code>.</${Empty}>`} columns=${[
        { label: "Worker", head: true, cell: (row) => row.name || row.id },
        { label: "State", cell: (row) => html`<${Badge} word=${row.silent ? "silent" : row.draining ? "draining" : "running"} />` },
        { label: "Executor", cell: (row) => row.executor },
        { label: "Slots", number: true, cell: (row) => count(row.slots) },
        { label: "Process", class: "mono wrap-anywhere", cell: (row) => row.process ?? "–" },
      ]} />
    ${changing && html`<${ChangePlanner} now=${planner.planner} known=${planner.known} onClose=${() => setChanging(false)} onDone=${reload} />`}
  </${Card}>`;
}

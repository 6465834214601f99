/** Decisions: what the gates did, newest first, with the reason. */
import { clock, count, duration, plural } from "../format.js";
import { html, useState } from "../html.js";
import { Badge, ClassName } from "../parts/badge.js";
import { Card, Empty } from "../parts/card.js";
import { Field, Select } from "../parts/choices.js";
import { Table } from "../parts/table.js";
import { gateIds } from "../series.js";
import { state } from "../store.js";

const NARROW = matchMedia("(max-width: 700px)");
const KINDS = ["started", "refused", "expired", "evicted", "promoted", "withdrawn", "moved", "done", "failed", "disconnected"];

export function Decisions() {
  const [held, setHeld] = useState(/** @type {any[]|null} */ (null));
  const [what, setWhat] = useState("");
  const [gate, setGate] = useState("");
  const [text, setText] = useState("");
  const source = held ?? state.decisions;
  const wanted = text.trim().toLowerCase();
  const rows = source.filter((one) => (!what || one.what === what) && (!gate || one.gate === gate)
    && (!wanted || `${one.key} ${one.class} ${one.tenant} ${one.workload} ${one.why}`.toLowerCase().includes(wanted)));
  const newer = held ? (state.decisions[0]?.number ?? 0) - (held[0]?.number ?? 0) : 0;
  const gates = [["", "All gates"], ...gateIds().map((/** @type {string} */ one) => [one, one])];
  const kinds = [["", "Everything"], ...KINDS.map((one) => [one, one])];
  return html`
    <div class="filters">
      <${Field} class="grow" label="Find" type="search" value=${text} onInput=${setText} placeholder="key, class, tenant, workload or reason" />
      <${Select} label="Gate" value=${gate} options=${gates} onChange=${setGate} />
      <${Select} label="What" value=${what} options=${kinds} onChange=${setWhat} />
      <button type="button" class=${held ? "button primary" : "button"} aria-pressed=${held ? "true" : "false"} onClick=${() => setHeld(held ? null : state.decisions)}>${held ? "Go on" : "Pause"}</button>
    </div>
    <${Card} title="Decisions" flush note=${html`${held ? `paused; ${plural(newer, "newer decision")}` : `${plural(rows.length, "decision")} of the last ${count(source.length)}`}${
      state.decisionsMissed > 0 ? `; ${count(state.decisionsMissed)} others were not sent: too many at once, or the page was away` : ""}`}>
      <${Table} class="feed" caption="Decisions, newest first" rows=${rows.slice(0, NARROW.matches ? 30 : 100)} rowKey=${(/** @type {any} */ row) => row.number}
        empty=${html`<${Empty} title=${source.length ? "No decision matches." : "No decision yet."}>${source.length ? "Change the filter above." : "They appear as soon as something arrives at a gate."}</${Empty}>`} columns=${[
          { label: "Time", class: "mono nowrap", cell: (row) => clock(row.t, true) },
          { label: "What", cell: (row) => html`<${Badge} word=${row.what} />` },
          { label: "Key", class: "mono key", cell: (row) => html`<span title=${row.key}>${row.key}</span>` },
          { label: "Class", cell: (row) => html`<${ClassName} gate=${row.gate} name=${row.class} />` },
          { label: "Tenant", cell: (row) => row.tenant || "–" },
          { label: "Gate", class: "nowrap", cell: (row) => row.gate },
          { label: "Waited", number: true, cell: (row) => duration(row.waited) },
          { label: "Held", number: true, cell: (row) => duration(row.held) },
          { label: "Why", class: "why", cell: (row) => row.why || "–" },
        ]} />
    </${Card}>`;
}

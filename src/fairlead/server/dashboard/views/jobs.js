/** Jobs: the runs, newest first, by state and tenant; one page at a time, whatever their number. */
import { usePoll, useTick } from "../api.js";
import { count, moment } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Badge } from "../parts/badge.js";
import { Card, Empty, Kpis, Loading, Trouble } from "../parts/card.js";
import { Field, Select } from "../parts/choices.js";
import { Progress, Slas } from "../parts/sla.js";
import { Table } from "../parts/table.js";
import { address, go } from "../route.js";
import { latest } from "../store.js";
import { Workers } from "./workers.js";

const STATES = ["created", "active", "completed", "failed", "cancelled", "suspended"];
const PAGE = 50;

function figures(/** @type {any} */ jobs) {
  return [
    { label: "running", value: count(jobs.running) },
    { label: "ready", value: count(jobs.ready) },
    { label: "waiting for others", value: count(jobs.waiting) },
    { label: "done", value: count(jobs.done) },
    { label: "failed", value: count(jobs.failed), tone: jobs.failed > 0 ? "bad" : undefined },
    { label: "SLAs missed, soft/hard", value: count(jobs.sla_soft_missed), of: `/ ${count(jobs.sla_hard_missed)}`, tone: jobs.sla_hard_missed > 0 ? "bad" : jobs.sla_soft_missed > 0 ? "warn" : undefined },
    { label: "workers", value: count(jobs.workers) },
  ];
}

/** @param {{query: URLSearchParams}} props */
export function Jobs({ query }) {
  useTick(1000);
  const state = query.get("state") ?? "";
  const tenant = query.get("tenant") ?? "";
  const [typed, setTyped] = useState(tenant);
  const [cursors, setCursors] = useState(/** @type {string[]} */ ([]));
  const cursor = cursors[cursors.length - 1] ?? "";
  useEffect(() => setCursors([]), [state, tenant]);
  useEffect(() => {
    if (typed === tenant) return undefined;
    const timer = setTimeout(() => go("jobs", { state, tenant: typed.trim() }), 350);
    return () => clearTimeout(timer);
  }, [typed]);
  const asked = new URLSearchParams({ limit: String(PAGE), ...(state && { state }), ...(tenant && { tenant }), ...(cursor && { cursor }) });
  const { data, error, loading, reload } = usePoll(`jobs/runs?${asked}`, cursor ? 0 : 2000);
  const jobs = latest()?.jobs;
  if (error?.status === 404) {
    return html`<${Card} title="No jobs door"><${Empty} title="This server hosts no jobs.">Add a <code>jobs:</code> section to the configuration.</${Empty}></${Card}>`;
  }
  return html`
    ${jobs && html`<${Kpis} label="Jobs" items=${figures(jobs)} />`}
    <div class="filters">
      <${Select} label="State" value=${state} options=${[["", "All states"], ...STATES.map((one) => [one, one])]} onChange=${(/** @type {string} */ one) => go("jobs", { state: one, tenant })} />
      <${Field} label="Tenant" type="search" value=${typed} onInput=${setTyped} placeholder="all tenants" />
    </div>
    ${error && html`<${Trouble} error=${error} retry=${reload} />`}
    <${Card} title="Runs" note=${cursors.length ? `page ${cursors.length + 1}` : "newest first"} flush>
      ${loading && !data ? html`<${Loading} />` : html`<${Table} caption="Runs, newest first" rows=${data?.items ?? []} rowKey=${(/** @type {any} */ row) => row.id}
        onOpen=${(/** @type {any} */ row) => go(`jobs/${encodeURIComponent(row.id)}`)}
        empty=${html`<${Empty} title=${state || tenant ? "No run matches." : "No runs yet."}>${state || tenant ? "Change the filter above." : html`Submit one with <code>fairlead jobs submit</code>.`}</${Empty}>`}
        columns=${[
          { label: "Run", head: true, cell: (row) => html`<a href=${address(`jobs/${encodeURIComponent(row.id)}`)} tabindex="-1">${row.name || row.id}</a> <span class="muted small mono nowrap">${String(row.id).slice(-8)}</span>` },
          { label: "State", cell: (row) => html`<${Badge} word=${row.cancelling && row.state === "active" ? "cancelling" : row.state} />` },
          { label: "Tenant", cell: (row) => row.tenant ?? "–" },
          { label: "Progress", class: "wide", cell: (row) => html`<${Progress} run=${row} />` },
          { label: "SLA", class: "wide", cell: (row) => html`<${Slas} run=${row} />` },
          { label: "Submitted", number: true, cell: (row) => moment(row.submitted) },
          { label: "Ended", number: true, cell: (row) => moment(row.ended) },
        ]} />`}
      <div class="pages">
        <button type="button" class="button" disabled=${!cursors.length} onClick=${() => setCursors(cursors.slice(0, -1))}>Newer</button>
        <button type="button" class="button" disabled=${!data?.next} onClick=${() => setCursors([...cursors, data.next])}>Older</button>
      </div>
    </${Card}>
    <${Workers} />`;
}

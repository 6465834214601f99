/** Streams: who reads which partition, how far behind, and what is withheld and why. */
import { usePoll } from "../api.js";
import { count, duration, plural } from "../format.js";
import { html, names } from "../html.js";
import { Badge, classNumber, seriesClass } from "../parts/badge.js";
import { Card, Empty, Kpis, Loading, Trouble } from "../parts/card.js";
import { Chart } from "../parts/chart.js";
import { Table } from "../parts/table.js";
import { recent } from "../series.js";
import { latest } from "../store.js";

const GATE = "streams/workers"; // whose classes are the topics

/** @param {number} at which app */
function lagLines(at) {
  const snapshots = recent(15).filter((one) => one.streams?.[at]);
  const topics = Object.keys(snapshots[snapshots.length - 1]?.streams[at].topics ?? {});
  return {
    times: snapshots.map((one) => one.t),
    series: topics.map((label) => ({ label, color: classNumber(GATE, label), values: snapshots.map((one) => one.streams[at].topics[label]?.lag ?? null) })),
  };
}

/** @param {{lag: number|null, most: number, topic: string}} props */
const Lag = ({ lag, most, topic }) => html`<div class=${names("share", seriesClass(classNumber(GATE, topic)))}>
  <div class="track" role="img" aria-label=${`lag ${count(lag)}`}><span class="fill eased" style=${{ width: `${lag === null ? 0 : (lag / Math.max(1, most)) * 100}%` }}></span></div></div>`;

/** @param {{app: any, at: number}} props */
function App({ app, at }) {
  const topics = Object.entries(app.topics ?? {}).map(([name, one]) => ({ name, .../** @type {any} */ (one) }));
  const groups = Object.entries(app.groups ?? {}).map(([name, one]) => ({ name, .../** @type {any} */ (one) }));
  const partitions = app.partitions ?? [];
  const known = partitions.filter((/** @type {any} */ one) => one.lag !== null);
  const most = Math.max(0, ...known.map((/** @type {any} */ one) => one.lag));
  const lag = known.reduce((/** @type {number} */ n, /** @type {any} */ one) => n + one.lag, 0);
  return html`
    <${Kpis} label=${`Stream app ${app.group ?? ""}`} items=${[
      { label: `consumer group: ${app.state ?? ""}`, value: html`<span class="kpi-text">${app.group ?? "–"}</span>` },
      { label: "lag, all partitions", value: count(lag) },
      { label: "workers busy", value: count(app.workers?.busy), of: `of ${count(app.concurrency)}` },
      { label: "waiting for a worker", value: count(app.workers?.enqueued) },
      { label: "withheld", value: count(app.withheld_count), of: app.withheld_count ? `oldest ${duration(app.withheld_oldest)}` : undefined, tone: app.withheld_oldest > 30 ? "warn" : undefined },
      { label: `slowest call of ${app.scheduler?.name ?? "the scheduler"}`, value: duration(app.scheduler?.slowest) },
    ]} />
    <div class="two even">
      <${Card} title="Lag by topic" note="last 15 minutes"><${Chart} ...${lagLines(at)} format=${count} label="Lag by topic, last 15 minutes" /></${Card}>
      <${Card} title="Withheld, and why" flush note=${app.withheld_count > (app.withheld?.length ?? 0) ? `the oldest ${app.withheld.length} of ${app.withheld_count}` : ""}>
        <${Table} caption="Withheld jobs" rows=${app.withheld ?? []} rowKey=${(/** @type {any} */ row, /** @type {number} */ index) => `${row.topic}-${row.partition}-${index}`}
          empty=${html`<${Empty} title="Nothing is withheld.">Every job that was read is with a worker or on its way.</${Empty}>`} columns=${[
            { label: "Topic", head: true, cell: (row) => html`${row.topic} <span class="muted">${row.partition}</span>` },
            { label: "Messages", number: true, cell: (row) => count(row.messages) },
            { label: "For", number: true, cell: (row) => duration(row.age) },
            { label: "Why", class: "why", cell: (row) => row.explain },
          ]} />
      </${Card}>
    </div>
    <${Card} title="Topics" flush><${Table} caption="Topics" rows=${topics} rowKey=${(/** @type {any} */ row) => row.name} columns=${[
      { label: "Topic", head: true, cell: (row) => html`<span class=${names("class-name", seriesClass(classNumber(GATE, row.name)))}>${row.name}</span>` },
      { label: "Consumer", cell: (row) => row.consumer },
      { label: "Priority", number: true, cell: (row) => count(row.priority) },
      { label: "Weight", number: true, cell: (row) => count(row.weight) },
      { label: "Lag", number: true, cell: (row) => count(row.lag) },
      { label: "In flight", number: true, cell: (row) => count(row.in_flight) },
      { label: "Consumed", number: true, cell: (row) => count(row.consumed) },
      { label: "Failures", number: true, cell: (row) => count(row.failures) },
      { label: "Dead letters", number: true, cell: (row) => count(row.dead_letters) },
    ]} /></${Card}>
    <${Card} title="Assignment" note=${`${plural(partitions.length, "partition")} held by this process`} flush>
      <${Table} caption="Partitions held by this process" rows=${partitions} rowKey=${(/** @type {any} */ row) => `${row.topic}-${row.partition}`}
        empty=${html`<${Empty} title="No partition is assigned.">Another member of the group may hold them, or the broker cannot be reached.</${Empty}>`} columns=${[
          { label: "Partition", head: true, cell: (row) => `${row.topic} ${row.partition}` },
          { label: "Group", cell: (row) => row.subscription_group },
          { label: "State", cell: (row) => html`<${Badge} word=${row.paused ? "paused" : "running"} />` },
          { label: "Behind", class: "wide", cell: (row) => html`<${Lag} lag=${row.lag} most=${most} topic=${row.topic} />` },
          { label: "Lag", number: true, cell: (row) => count(row.lag) },
          { label: "Committed", number: true, cell: (row) => count(row.committed) },
          { label: "Position", number: true, cell: (row) => count(row.position) },
          { label: "End", number: true, cell: (row) => count(row.end) },
          { label: "Buffered", number: true, cell: (row) => count(row.buffered) },
          { label: "Running", number: true, cell: (row) => count(row.running) },
        ]} /></${Card}>
    <${Card} title="Subscription groups" flush><${Table} caption="Subscription groups" rows=${groups} rowKey=${(/** @type {any} */ row) => row.name} columns=${[
      { label: "Group", head: true, cell: (row) => row.name },
      { label: "State", cell: (row) => html`<${Badge} word=${row.connected === false ? "disconnected" : "running"} />` },
      { label: "Held back", cell: (row) => (row.blocked ? "yes, by a job at work" : "no") },
      { label: "Polled", number: true, cell: (row) => `${duration(row.polled_ago)} ago` },
      { label: "Records", number: true, cell: (row) => count(row.records) },
      { label: "Commits", number: true, cell: (row) => count(row.commits) },
      { label: "Rebalances", number: true, cell: (row) => count(row.rebalances) },
      { label: "Retries", number: true, cell: (row) => count(row.retries) },
    ]} /></${Card}>`;
}

export function Streams() {
  const live = latest()?.streams;
  const { data, error, loading, reload } = usePoll(live ? null : "streams", 5000);
  const apps = live ?? data?.apps ?? [];
  if (!live && loading) return html`<${Loading} />`;
  if (!apps.length && error && error.status !== 404) return html`<${Trouble} error=${error} retry=${reload} />`;
  if (!apps.length) {
    return html`<${Card} title="No streams"><${Empty} title="This server hosts no stream app.">Add a <code>streams:</code> section with <code>app: module:app</code> to the configuration.</${Empty}></${Card}>`;
  }
  return apps.map((/** @type {any} */ app, /** @type {number} */ at) => html`<${App} key=${at} app=${app} at=${at} />`);
}

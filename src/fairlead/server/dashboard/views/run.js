/** One run: its graph, when each job ran, what it promised, and what may be done about it. */
import { api, usePoll, useTick } from "../api.js";
import { count, duration, instant, moment } from "../format.js";
import { html, useState } from "../html.js";
import { Badge } from "../parts/badge.js";
import { Card, Empty, Facts, Loading, Trouble } from "../parts/card.js";
import { Field, Tabs } from "../parts/choices.js";
import { Confirm } from "../parts/dialog.js";
import { Progress, Slas, hasEnded } from "../parts/sla.js";
import { Table } from "../parts/table.js";
import { address } from "../route.js";
import { may, notify, serverNow } from "../store.js";
import { Gantt } from "./gantt.js";
import { Graph } from "./graph.js";

const TABS = /** @type {[string, string][]} */ ([["graph", "Graph"], ["gantt", "Timeline"], ["table", "Jobs"]]);

/** @param {{run: any, kind: string, onClose: () => void, onDone: () => void}} props */
function Action({ run, kind, onClose, onDone }) {
  const path = `jobs/runs/${encodeURIComponent(run.id)}`;
  const [soft, setSoft] = useState(local(run.soft_sla));
  const [hard, setHard] = useState(local(run.hard_sla));
  const send = async (/** @type {string} */ verb, /** @type {any} */ body, /** @type {string} */ said) => {
    await api(`${path}/${verb}`, { method: "POST", body });
    notify("good", said);
    onDone();
  };
  const name = run.name || run.id;
  if (kind === "cancel") {
    return html`<${Confirm} title=${`Cancel ${name}?`} verb="Cancel the run" danger act=${() => send("cancel", {}, `${name} is being cancelled.`)} onClose=${onClose}>
      <p>Jobs that have not started never will. Jobs that run are asked to stop. What is completed stays so; a later retry goes on from there.</p></${Confirm}>`;
  }
  if (kind === "retry") {
    return html`<${Confirm} title=${`Retry ${name}?`} verb="Retry the run" act=${() => send("retry", {}, `${name} goes on.`)} onClose=${onClose}>
      <p>Every job that failed, expired, was cancelled or skipped is made ready again; what is completed is not run again.</p></${Confirm}>`;
  }
  const times = { soft: epoch(soft), hard: epoch(hard) };
  const ordered = !(times.soft !== null && times.hard !== null && times.soft > times.hard);
  // What is not touched is not sent: a field knows whole seconds only, and the other may have been changed elsewhere.
  const changes = {
    ...(soft !== local(run.soft_sla) && { soft: iso(times.soft) }), ...(hard !== local(run.hard_sla) && { hard: iso(times.hard) }),
  };
  const ready = ordered && Object.keys(changes).length > 0;
  return html`<${Confirm} title=${`SLAs of ${name}`} verb="Change the SLAs" ready=${ready} act=${() => send("sla", changes, `The SLAs of ${name} are changed.`)} onClose=${onClose}>
    <p>Jobs are ordered by how close these instants are, so a change takes effect at the next decision. Leave a field empty for none.</p>
    <${Field} label="Soft SLA" type="datetime-local" value=${soft} onInput=${setSoft} hint="should be done by then" />
    <${Field} label="Hard SLA" type="datetime-local" value=${hard} onInput=${setHard} hint="must be done by then" invalid=${!ordered} />
    ${!ordered && html`<p class="tone-bad">The soft SLA has to come before the hard one.</p>`}</${Confirm}>`;
}

/** An instant in the form a datetime field wants. @param {any} value */
function local(value) {
  const at = instant(value);
  if (at === null) return "";
  const date = new Date(at * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}
const epoch = (/** @type {string} */ text) => (text ? new Date(text).getTime() / 1000 : null);
const iso = (/** @type {number|null} */ at) => (at === null ? null : new Date(at * 1000).toISOString());

/** @param {{run: any, job: any}} props */
function Detail({ run, job }) {
  const { data, error } = usePoll(`jobs/runs/${encodeURIComponent(run.id)}/jobs/${encodeURIComponent(job.node)}/explain`, hasEnded(job.state) ? 0 : 2000, job.state);
  const started = instant(job.started); const ended = instant(job.ended);
  return html`<${Card} class="detail" title=${job.name || `job ${job.node}`} note=${html`<${Badge} word=${job.state} />`}>
    ${error ? html`<${Trouble} error=${error} />` : html`<p class="explain">${data?.explanation ?? "…"}</p>`}
    <div class="space"><${Facts} items=${[
      ["failed attempts", count(job.attempts)], ["executor", job.executor ?? "–"], ["worker", job.worker ?? "–"],
      ["waited", started !== null && instant(job.submitted) !== null ? duration(started - (instant(job.submitted) ?? 0)) : "–"],
      ["ran", started !== null ? duration((ended ?? serverNow()) - started) : "–"], ["estimate", duration(job.estimate)],
    ]} /></div>
    ${job.error && html`<p class="trouble space mono">${job.error}</p>`}
  </${Card}>`;
}

/** @param {{id: string}} props */
export function Run({ id }) {
  useTick(1000);
  const [ended, setEnded] = useState(false);
  const { data: run, error, loading, reload } = usePoll(`jobs/runs/${encodeURIComponent(id)}`, ended ? 10000 : 1000);
  const [tab, setTab] = useState("graph");
  const [chosen, setChosen] = useState(/** @type {any} */ (null));
  const [action, setAction] = useState("");
  if (run && ended !== hasEnded(run.state)) setEnded(hasEnded(run.state));
  if (!run) {
    return html`<p><a href=${address("jobs")}>All runs</a></p>${error ? html`<${Trouble} error=${error} retry=${reload} />` : loading && html`<${Loading} />`}`;
  }
  const jobs = run.jobs ?? [];
  const job = jobs.find((/** @type {any} */ one) => one.node === chosen);
  const operator = may("operator");
  const over = hasEnded(run.state);
  return html`
    <p class="crumbs"><a href=${address("jobs")}>All runs</a></p>
    ${error && html`<${Trouble} error=${error} retry=${reload} />`}
    <${Card} title=${run.name || run.id} note=${html`<${Badge} word=${run.cancelling && !over ? "cancelling" : run.state} /> <span class="mono">${run.id}</span>`} tools=${operator && html`
      <button type="button" class="button" onClick=${() => setAction("sla")} disabled=${over}>Change SLAs…</button>
      <button type="button" class="button" onClick=${() => setAction("retry")} disabled=${!over || run.state === "completed"}>Retry…</button>
      <button type="button" class="button danger" onClick=${() => setAction("cancel")} disabled=${over}>Cancel…</button>`}>
      <${Facts} items=${[
        ["SLA", html`<${Slas} run=${run} />`], ["progress", html`<${Progress} run=${run} />`], ["tenant", run.tenant ?? "–"],
        ["submitted", moment(run.submitted)], ["started", moment(run.started)], ["ended", moment(run.ended)],
      ]} />
      ${!operator && html`<p class="hint space">Your token may look. An operator's may also cancel, retry and change SLAs.</p>`}
    </${Card}>
    ${jobs.length < run.total && html`<p class="hint">The first ${jobs.length} of ${run.total} jobs are shown.</p>`}
    <div class="card"><${Tabs} label="Views of the run" tabs=${TABS} value=${tab} onChange=${setTab}>
      ${!jobs.length && html`<${Empty} title="This run has no jobs." />`}
      ${tab === "graph" && jobs.length > 0 && html`<${Graph} jobs=${jobs} chosen=${chosen} onChoose=${setChosen} />`}
      ${tab === "gantt" && jobs.length > 0 && html`<${Gantt} run=${run} jobs=${jobs} />`}
      ${tab === "table" && jobs.length > 0 && html`<${Table} caption="Jobs of the run" rows=${jobs.slice(0, 500)} rowKey=${(/** @type {any} */ row) => row.node} chosen=${chosen}
        onOpen=${(/** @type {any} */ row) => setChosen(row.node)} columns=${[
          { label: "Job", head: true, cell: (row) => row.name || row.node },
          { label: "State", cell: (row) => html`<${Badge} word=${row.state} />` },
          { label: "Executor", cell: (row) => row.executor ?? "–" },
          { label: "Worker", class: "mono wrap-anywhere", cell: (row) => row.worker ?? "–" },
          { label: "Failed attempts", number: true, cell: (row) => count(row.attempts) },
          { label: "Started", number: true, cell: (row) => moment(row.started) },
          { label: "Ran", number: true, cell: (row) => (instant(row.started) === null ? "–" : duration((instant(row.ended) ?? serverNow()) - (instant(row.started) ?? 0))) },
        ]} />`}
    </${Tabs}></div>
    ${job && html`<${Detail} key=${job.node} run=${run} job=${job} />`}
    ${!job && jobs.length > 0 && tab !== "gantt" && html`<p class="hint">Choose a job to see why it is where it is.</p>`}
    ${action && html`<${Action} run=${run} kind=${action} onClose=${() => setAction("")} onDone=${reload} />`}`;
}

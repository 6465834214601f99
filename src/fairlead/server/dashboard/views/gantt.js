/** When each job of a run waited and ran, against its SLAs. */
import { clock, duration, instant } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { look } from "../parts/badge.js";
import { hasEnded } from "../parts/sla.js";
import { serverNow } from "../store.js";

const SHOWN = 200;
const ROW = 24;
const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

/** @param {{run: any, jobs: any[]}} props */
export function Gantt({ run, jobs }) {
  const box = useRef(/** @type {any} */ (null));
  const [width, setWidth] = useState(0);
  const [all, setAll] = useState(false);
  useEffect(() => {
    const watcher = new ResizeObserver(([seen]) => setWidth(Math.round(seen.contentRect.width)));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  const now = serverNow();
  const over = hasEnded(run.state);
  const begun = jobs.filter((job) => instant(job.started) !== null || instant(job.submitted) !== null)
    .sort((a, b) => (instant(a.started) ?? Infinity) - (instant(b.started) ?? Infinity) || a.node - b.node);
  const rows = all ? begun : begun.slice(0, SHOWN);
  const from = Math.min(...[instant(run.submitted), ...rows.map((job) => instant(job.submitted) ?? instant(job.started))].filter((one) => one !== null && one > 0).map(Number));
  const lastEnd = Math.max(from + 0.01, ...rows.map((job) => instant(job.ended) ?? (instant(job.started) === null ? from : now)));
  const soft = instant(run.soft_sla); const hard = instant(run.hard_sla);
  let to = over ? instant(run.ended) ?? lastEnd : Math.max(now, lastEnd);
  // A promise near by belongs on the picture; one far away would squeeze everything else.
  for (const due of [soft, hard]) if (due !== null && due > to && due < to + (to - from) * 1.5) to = due;
  to += (to - from) * 0.04;

  const narrow = width < 560;
  const left = narrow ? 8 : 170;
  const x = (/** @type {number} */ at) => left + ((at - from) / (to - from)) * Math.max(1, width - left - 12);
  const high = narrow ? ROW + 14 : ROW;
  const top = 26;
  const height = top + rows.length * high + 8;
  const step = STEPS.find((one) => (to - from) / one <= (narrow ? 4 : 9)) ?? 86400 * 7;
  const ticks = []; for (let at = 0; at <= to - from; at += step) ticks.push(at);
  const lines = [["soft", soft, "soft SLA"], ["hard", hard, "hard SLA"], ...(over ? [] : [["now", now, "now"]])]
    .filter(([, at]) => at !== null && Number(at) >= from && Number(at) <= to);
  return html`<div class="gantt body" ref=${box}>
    ${width > 0 && html`<svg viewBox=${`0 0 ${width} ${height}`} height=${height} role="group" aria-label=${`Timeline of the run from ${clock(from)}`}>
      ${ticks.map((at) => html`<g key=${at}><line class="grid" x1=${x(from + at)} x2=${x(from + at)} y1="20" y2=${height} /><text x=${x(from + at) + 3} y="12">${at === 0 ? clock(from) : `+${duration(at)}`}</text></g>`)}
      ${rows.map((job, at) => html`<${Bar} key=${job.node} job=${job} y=${top + at * high} x=${x} now=${now} narrow=${narrow} left=${left} />`)}
      ${lines.map(([kind, at, word]) => html`<g key=${kind}><line class=${`line ${kind}`} x1=${x(Number(at))} x2=${x(Number(at))} y1="18" y2=${height} />
        <text class=${`${kind}-word`} x=${x(Number(at)) - 4} y="24" text-anchor="end">${word}</text></g>`)}
    </svg>`}
    ${!begun.length && html`<p class="muted">Nothing has started yet.</p>`}
    ${begun.length > rows.length && html`<div class="pages"><button type="button" class="button" onClick=${() => setAll(true)}>Show all ${begun.length} jobs</button></div>`}
  </div>`;
}

/** @param {{job: any, y: number, x: (at: number) => number, now: number, narrow: boolean, left: number}} props */
function Bar({ job, y, x, now, narrow, left }) {
  const [tone] = look(job.state);
  const submitted = instant(job.submitted); const started = instant(job.started);
  const ended = instant(job.ended) ?? now;
  const name = job.name || String(job.node);
  const bar = narrow ? y + 15 : y + 4;
  const said = `${name}: ${job.state}${started === null ? "" : `, ran ${duration(ended - started)}${submitted === null ? "" : ` after waiting ${duration(started - submitted)}`}`}`;
  return html`<g class=${`tone-${tone}`} role="img" aria-label=${said}><title>${said}</title>
    <text class="label" x=${narrow ? left : left - 8} y=${narrow ? y + 11 : y + 16} text-anchor=${narrow ? "start" : "end"}>${name.length > 24 ? `${name.slice(0, 23)}…` : name}</text>
    ${submitted !== null && (started !== null || !hasEnded(job.state)) && html`<rect class="wait" x=${x(submitted)} y=${bar + 6} width=${Math.max(0, x(started ?? now) - x(submitted))} height="4" rx="2" />`}
    ${started !== null && html`<rect class="run" x=${x(started)} y=${bar} width=${Math.max(3, x(ended) - x(started))} height="16" rx="3" />`}
  </g>`;
}

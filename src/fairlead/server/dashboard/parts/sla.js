/** How much time is left until a promise, or by how much it was missed. */
import { instant, long, moment } from "../format.js";
import { html } from "../html.js";
import { serverNow } from "../store.js";
import { Icon } from "./icons.js";

const ENDED = ["completed", "failed", "cancelled", "expired", "skipped"];

/** @param {string} state */
export const hasEnded = (state) => ENDED.includes(state);

/** @param {{word: string, at: any, ended: any, kept: boolean}} props `ended`: when the run ended, or null while it goes on */
export function Sla({ word, at, ended, kept }) {
  const due = instant(at);
  if (due === null) return null;
  const end = instant(ended);
  const left = due - (end ?? serverNow());
  let tone = "idle"; let icon = "waiting"; let text = `${word} in ${long(left)}`;
  if (end !== null) {
    [tone, icon, text] = left >= 0 ? kept ? ["good", "done", `${word} met`] : ["pause", "skipped", `${word} not met`] : ["bad", "failed", `${word} missed by ${long(-left)}`];
  } else if (left < 0) {
    [tone, icon, text] = ["bad", "failed", `${word} missed ${long(-left)} ago`];
  } else if (left < 60) {
    [tone, icon] = ["warn", "warn"];
  }
  return html`<span class=${`sla tone-${tone}`} title=${moment(due)}><${Icon} name=${icon} />${text}</span>`;
}

/** @param {{run: any}} props */
export const Slas = ({ run }) => {
  const ended = hasEnded(run.state) ? run.ended : null;
  const kept = run.state === "completed"; // a run that ended otherwise keeps no promise
  if (instant(run.soft_sla) === null && instant(run.hard_sla) === null) return html`<span class="muted">none</span>`;
  return html`<span class="slas"><${Sla} word="soft" at=${run.soft_sla} ended=${ended} kept=${kept} /><${Sla} word="hard" at=${run.hard_sla} ended=${ended} kept=${kept} /></span>`;
};

/** @param {{run: any}} props */
export const Progress = ({ run }) => html`<div class="progress"><div class="track" role="img" aria-label=${`${run.done} of ${run.total} jobs ended${run.failed ? `, ${run.failed} failed` : ""}`}>
  <span class="fill" style=${{ width: `${run.total ? (run.done / run.total) * 100 : 0}%` }}></span>
  ${run.failed > 0 && html`<span class="fill bad" style=${{ width: `${(run.failed / run.total) * 100}%` }}></span>`}</div>
  <span class="small nowrap">${run.done}/${run.total}${run.failed > 0 ? html` <span class="tone-bad">${run.failed} failed</span>` : ""}</span></div>`;

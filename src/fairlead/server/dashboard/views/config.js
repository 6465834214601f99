/** Config: what the server runs on, checked line by line before it may replace what is there. */
import { api, usePoll } from "../api.js";
import { plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { Card, Empty, Loading, Trouble } from "../parts/card.js";
import { Confirm } from "../parts/dialog.js";
import { Overrides, Trail } from "../parts/overrides.js";
import { may, notify } from "../store.js";

const PAUSE = 500; // ms without a key before what was typed is checked

export function Config() {
  const { data, error, loading, reload } = usePoll("config");
  const [text, setText] = useState(/** @type {string|null} */ (null));
  const [problems, setProblems] = useState(/** @type {any[]|null} */ (null));
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const [checking, setChecking] = useState(false);
  const [applying, setApplying] = useState(false);
  const [notes, setNotes] = useState(/** @type {string[]} */ ([]));
  const checks = useRef(0);
  const area = useRef(/** @type {any} */ (null));
  const gutter = useRef(/** @type {any} */ (null));
  const shown = text ?? data?.text ?? "";
  const edited = text !== null && text !== data?.text;
  const found = problems ?? data?.problems ?? [];

  const check = async (/** @type {string} */ what) => {
    const number = (checks.current += 1);
    setChecking(true);
    setFailed(null);
    try {
      const { problems: told } = await api("config/validate", { method: "POST", body: { text: what } });
      if (number !== checks.current) return; // something newer was asked about since
      setProblems(told);
    } catch (caught) {
      if (number !== checks.current) return;
      setFailed(caught);
    }
    setChecking(false);
  };
  useEffect(() => {
    if (text === null || !may("operator")) return undefined;
    const timer = setTimeout(() => check(text), PAUSE);
    return () => clearTimeout(timer);
  }, [text]);

  if (loading && !data) return html`<${Loading} />`;
  if (error) return html`<${Trouble} error=${error} retry=${reload} />`;
  const operator = may("operator"); const admin = may("admin");
  const lines = shown.split("\n").length;
  const bad = new Set(found.map((/** @type {any} */ one) => one.line));
  const goTo = (/** @type {any} */ problem) => {
    const before = shown.split("\n").slice(0, problem.line - 1).join("\n").length + (problem.line > 1 ? 1 : 0);
    const at = before + Math.max(0, (problem.column ?? 1) - 1);
    area.current.focus();
    area.current.setSelectionRange(at, at);
    area.current.scrollTop = Math.max(0, (problem.line - 6) * 20);
  };
  const apply = async () => {
    const said = await api("config", { method: "PUT", body: { text: shown } });
    setNotes(said.notes ?? []);
    notify("good", said.notes?.length ? "The configuration is written; some of it counts at the next start." : "The configuration is applied.");
    setText(null);
    setProblems(null);
    reload();
  };
  const said = checking ? "checking…" : found.length ? plural(found.length, "problem") : problems || !edited ? "no problems" : "not checked yet";
  return html`
    <div class="two">
      <${Card} title=${data.path ?? "Embedded defaults"} live=${false} note=${edited ? "changed here, not applied" : data.path ? "" : "no file: the server runs on what it carries"} tools=${html`
        ${edited && html`<button type="button" class="button" onClick=${() => { setText(null); setProblems(null); }}>Undo</button>`}
        ${operator && html`<button type="button" class="button" onClick=${() => check(shown)} disabled=${checking}>Validate</button>`}
        ${admin && html`<button type="button" class="button primary" disabled=${!edited || !data.path || found.length > 0 || checking || problems === null} onClick=${() => setApplying(true)}>Apply…</button>`}`}>
        <div class="editor">
          <div class="numbers" ref=${gutter} aria-hidden="true">${Array.from({ length: lines }, (_, at) => html`<div key=${at} class=${bad.has(at + 1) ? "bad" : ""}>${at + 1}</div>`)}</div>
          <textarea ref=${area} aria-label="Configuration (YAML)" spellcheck=${false} autocapitalize="off" readonly=${!operator} value=${shown} wrap="off"
            onInput=${(/** @type {any} */ event) => setText(event.target.value)} onScroll=${(/** @type {any} */ event) => { gutter.current.scrollTop = event.target.scrollTop; }}></textarea>
        </div>
        <p class="hint space">Secrets are masked${data.path ? "" : "; write a file with fairlead init and start with --config to change settings"}.${operator ? admin ? "" : " Applying needs an admin's token." : " Your token may look; validating needs an operator's."}</p>
      </${Card}>
      <${Card} title="Problems" note=${said} live=${false}>
        <div role="status" class="unseen">${said}</div>
        ${notes.length > 0 && !edited && html`<div class="banner warn" role="status"><div><strong>Counts at the next start:</strong><ul>${notes.map((one) => html`<li key=${one}>${one}</li>`)}</ul></div></div>`}
        ${failed && html`<${Trouble} error=${failed} />`}
        ${found.length ? html`<ul class="problems">${found.map((/** @type {any} */ one, /** @type {number} */ at) => html`<li key=${at}>
          <button type="button" class="button mono" onClick=${() => goTo(one)} aria-label=${`Go to line ${one.line}, column ${one.column}`}>${one.line}:${one.column}</button>
          <p>${one.path && html`<code>${one.path}</code> `}${one.message}</p></li>`)}</ul>`
          : html`<${Empty} title=${edited && problems === null ? "Not checked yet." : "No problems."}>${edited && problems ? "This configuration can be applied." : "This configuration is valid. What was changed by hand since is listed under Overrides."}</${Empty}>`}
      </${Card}>
    </div>
    <${Overrides} />
    <${Trail} />
    ${applying && html`<${Confirm} title="Apply this configuration?" verb="Apply" act=${apply} onClose=${() => setApplying(false)}>
      <p>It is written to <code>${data.path}</code> and takes effect at once. What runs keeps its room. What can change only at a start is told, and stays as it is until then.</p></${Confirm}>`}`;
}

/** The page around the views: where to go, whether what is shown is live, and who may do what. */
import { setToken, token, useTick } from "./api.js";
import { clock, long } from "./format.js";
import { html, names, render, useEffect, useErrorBoundary, useRef, useState } from "./html.js";
import { follow, retryNow } from "./live.js";
import { Badge } from "./parts/badge.js";
import { Card } from "./parts/card.js";
import { Field, Segmented } from "./parts/choices.js";
import { Dialog } from "./parts/dialog.js";
import { Icon, Mark } from "./parts/icons.js";
import { useRoute } from "./route.js";
import { dismiss, latest, serverNow, state, useStore } from "./store.js";
import { chooseTheme, watchTheme } from "./theme.js";
import { Classes } from "./views/classes.js";
import { Config } from "./views/config.js";
import { Decisions } from "./views/decisions.js";
import { Jobs } from "./views/jobs.js";
import { Now } from "./views/now.js";
import { Run } from "./views/run.js";
import { Streams } from "./views/streams.js";
import { WhatIf } from "./views/whatif.js";

/** @type {Record<string, {title: string, icon: string, about: string, view: any}>} */
const VIEWS = {
  now: { title: "Now", icon: "now", about: "Is there room, who waits, and why.", view: Now },
  classes: { title: "Classes & tenants", icon: "classes", about: "How long each class waits, and who gets how much.", view: Classes },
  jobs: { title: "Jobs", icon: "jobs", about: "Runs, their graphs and their SLAs.", view: Jobs },
  streams: { title: "Streams", icon: "streams", about: "Assignment, lag, and what is withheld.", view: Streams },
  decisions: { title: "Decisions", icon: "decisions", about: "What the gates did, with the reason.", view: Decisions },
  "what-if": { title: "What-if", icon: "whatif", about: "The last minutes under other settings.", view: WhatIf },
  config: { title: "Config", icon: "config", about: "What the server runs on, checked before it counts.", view: Config },
};
const THEMES = /** @type {[string, string][]} */ ([["system", "Auto"], ["light", "Light"], ["dark", "Dark"]]);

function Light() {
  const words = { live: ["Live", "dot"], lost: ["Connection lost", "failed"], connecting: ["Connecting…", "ring"] };
  const [word, icon] = words[state.connection];
  return html`<span class=${`light ${state.connection}`} role="status" data-connection=${state.connection}><${Icon} name=${icon} />${word}</span>`;
}

function Lost() {
  useTick(500);
  const left = state.retryAt === null ? 0 : Math.max(0, Math.ceil((state.retryAt - Date.now()) / 1000));
  const last = latest();
  return html`<div class="banner" role="alert"><p><strong>Connection lost.</strong> ${last ? `Shown is what was known at ${clock(last.t)}. ` : ""}Trying again by itself.</p>
    <span class="muted small" aria-hidden="true">${left ? `in ${left} s` : "now…"}</span><button type="button" class="button" onClick=${retryNow}>Try now</button></div>`;
}

/** @param {{onClose?: () => void}} props without `onClose` nothing can be done before a token is given */
function TokenPrompt({ onClose }) {
  const [typed, setTyped] = useState("");
  const wrong = state.tokenWrong && !onClose;
  const use = () => {
    if (!typed.trim()) return;
    setToken(typed.trim());
    if (onClose) location.reload(); // whatever the page knows, the other token may not know
    state.needToken = false;
    retryNow();
  };
  return html`<${Dialog} title=${onClose ? "Use another token" : "This server asks for a token"} onSubmit=${use} onClose=${onClose}>
    <p>${wrong ? "The token was not accepted. " : ""}Give one of the tokens named under <code>server.tokens</code>. It is kept in this tab until you close it.</p>
    <${Field} label="Token" type="password" value=${typed} onInput=${setTyped} invalid=${wrong} />
    <div class="actions">${onClose && html`<button type="button" class="button" onClick=${onClose}>Leave as it is</button>`}
      <button type="submit" class="button primary" disabled=${!typed.trim()}>Use this token</button></div>
  </${Dialog}>`;
}

/** @param {{view: string, open: boolean, onToggle: () => void, onToken: () => void}} props */
function Side({ view, open, onToggle, onToken }) {
  const { overview } = state;
  return html`<div class=${names("side", open && "open")}>
    <div class="bar"><a class="brand" href="#/now"><${Mark} />Fairlead</a>
      <button type="button" class="button menu-button" aria-expanded=${open ? "true" : "false"} aria-controls="nav" onClick=${onToggle}><${Icon} name="menu" />Menu</button></div>
    <nav class="nav" id="nav" aria-label="Views">${Object.entries(VIEWS).map(([key, one]) => html`<a key=${key} href=${`#/${key}`} aria-current=${key === view ? "page" : undefined}>
      <${Icon} name=${one.icon} />${one.title}</a>`)}</nav>
    ${overview && html`<div class="doors"><h2>Doors</h2><ul>${overview.doors.map((/** @type {any} */ one) => {
      const stands = latest()?.doors?.find((/** @type {any} */ door) => door.name === one.name) ?? one; // the overview is of when the page came
      return html`<li key=${one.name} title=${stands.reason ?? one.detail}><${Badge} word=${stands.state} /><span>${one.name}</span></li>`;
    })}</ul></div>`}
    <div class="foot"><${Segmented} label="Theme" options=${THEMES} value=${state.theme} onChange=${chooseTheme} />
      ${overview && html`<p>Fairlead ${overview.version}<br />up ${long(serverNow() - overview.started)}<br />you are ${overview.role}${overview.demo ? html`<br />demo traffic is on` : ""}</p>`}
      ${overview && token() && html`<button type="button" class="button" onClick=${onToken}>Use another token…</button>`}</div>
  </div>`;
}

/** @param {{route: any}} props */
function View({ route }) {
  const [error, reset] = useErrorBoundary((caught) => { console.error(caught); });
  useEffect(() => { if (error) reset(); }, [route]);
  if (error) return html`<${Card} title="This view failed"><p>${String(error.message ?? error)}</p><p class="space"><button type="button" class="button" onClick=${reset}>Draw it again</button></p></${Card}>`;
  if (route.view === "jobs" && route.rest[0]) return html`<${Run} key=${route.rest[0]} id=${route.rest[0]} />`;
  const one = VIEWS[route.view] ?? VIEWS.now;
  return html`<${one.view} query=${route.query} />`;
}

function App() {
  useStore();
  const route = useRoute();
  const [open, setOpen] = useState(false);
  const [choosing, setChoosing] = useState(false);
  const heading = useRef(/** @type {any} */ (null));
  const first = useRef(true);
  const one = VIEWS[route.view] ?? VIEWS.now;
  const place = `${route.view}/${route.rest.join("/")}`;
  useEffect(() => {
    document.title = `${one.title} – Fairlead`;
    setOpen(false);
    // After a change of view, reading and tabbing begin at its heading; the first view is left to the browser.
    if (!first.current) { heading.current?.focus(); scrollTo(0, 0); }
    first.current = false;
  }, [place]);
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); heading.current?.focus(); }}>Skip to the view</a>
    <div class=${names("shell", state.connection === "lost" && "stale")}>
      <header class="side-box"><${Side} view=${route.view} open=${open} onToggle=${() => setOpen(!open)} onToken=${() => setChoosing(true)} /></header>
      <main class="main" id="main">
        <div class="top"><h1 tabindex="-1" ref=${heading}>${one.title}</h1><p class="about">${one.about}</p>
          <div class="right">${state.overview?.draining && html`<${Badge} word="draining" />`}<${Light} /></div></div>
        ${state.connection === "lost" && html`<${Lost} />`}
        <div class="content"><${View} route=${route} /></div>
      </main>
    </div>
    <div class="notices" role="status">${state.notices.map((notice) => html`<div class=${`notice ${notice.kind}`} key=${notice.id}><p>${notice.text}</p>
      <button type="button" class="button plain icon" aria-label="Close this notice" onClick=${() => dismiss(notice.id)}><${Icon} name="close" /></button></div>`)}</div>
    ${state.needToken ? html`<${TokenPrompt} />` : choosing && html`<${TokenPrompt} onClose=${() => setChoosing(false)} />`}`;
}

watchTheme();
render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));
follow();

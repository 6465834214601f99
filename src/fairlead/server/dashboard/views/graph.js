/** The graph of a run, with the state each job is in; walked with the arrow keys along its edges. */
import { html, names, useEffect, useMemo, useRef, useState } from "../html.js";
import { look } from "../parts/badge.js";
import { Icon, path } from "../parts/icons.js";
import { layout } from "../layout.js";

const MOST_EDGES = 4000; // above that, only those of the chosen job are drawn
const ZOOMS = [0.25, 0.4, 0.6, 0.8, 1, 1.25, 1.6];

/** @param {{jobs: any[], chosen: any, onChoose: (node: any) => void}} props */
export function Graph({ jobs, chosen, onChoose }) {
  const shape = jobs.map((job) => `${job.node}<${job.deps.join(",")}`).join(";");
  const drawn = useMemo(() => layout(jobs), [shape]);
  const box = useRef(/** @type {any} */ (null));
  const [zoom, setZoom] = useState(1);
  const [focused, setFocused] = useState(jobs[0].node);
  const { places, cell, dense, columns } = drawn;
  const byNode = useMemo(() => new Map(jobs.map((job) => [job.node, job])), [jobs]);
  const after = useMemo(() => {
    /** @type {Map<any, any[]>} */ const found = new Map(jobs.map((job) => [job.node, []]));
    for (const job of jobs) for (const dep of job.deps) found.get(dep)?.push(job.node);
    return found;
  }, [shape]);

  const fit = (/** @type {number} */ least) => {
    const { clientWidth: width } = box.current;
    setZoom(Math.max(least, Math.min(1, (width - 4) / drawn.width, 540 / drawn.height)));
  };
  // At first nothing is made too small to read: what does not fit is scrolled to.
  useEffect(() => fit(dense ? 0.4 : 0.65), [shape]);

  const step = (/** @type {number} */ by) => {
    const at = ZOOMS.findIndex((one) => one >= zoom - 0.001);
    setZoom(ZOOMS[Math.max(0, Math.min(ZOOMS.length - 1, (at < 0 ? ZOOMS.length - 1 : at) + by))]);
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const place = places.get(focused);
    if (!place) return;
    const column = columns[place.level];
    const at = column.indexOf(focused);
    const moves = {
      ArrowRight: after.get(focused)?.[0], ArrowLeft: byNode.get(focused)?.deps[0],
      ArrowDown: column[at + 1], ArrowUp: column[at - 1],
      Home: columns[0][0], End: columns[columns.length - 1][0],
    };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onChoose(focused);
    } else if (event.key in moves) {
      event.preventDefault();
      const to = /** @type {Record<string, any>} */ (moves)[event.key];
      if (to === undefined) return;
      setFocused(to);
      box.current.querySelector(`[data-node="${CSS.escape(String(to))}"]`)?.focus();
    }
  };

  const edges = jobs.flatMap((job) => job.deps.filter((/** @type {any} */ dep) => places.has(dep)).map((/** @type {any} */ dep) => [dep, job.node]));
  const lit = (/** @type {any[]} */ [from, to]) => from === chosen || to === chosen;
  const visible = edges.length > MOST_EDGES ? edges.filter(lit) : edges;
  return html`<div>
    <div class="pages">
      <span class="small muted">${jobs.length} jobs, ${edges.length} edges${visible.length < edges.length ? "; those of the chosen job are drawn" : ""}</span>
      <button type="button" class="button icon" aria-label="Smaller" onClick=${() => step(-1)}><${Icon} name="minus" /></button>
      <button type="button" class="button" onClick=${() => fit(0.15)}>Fit</button>
      <button type="button" class="button icon" aria-label="Larger" onClick=${() => step(1)}><${Icon} name="plus" /></button>
    </div>
    <div class="graph-box" ref=${box}>
      <svg width=${Math.round(drawn.width * zoom)} height=${Math.round(drawn.height * zoom)} viewBox=${`0 0 ${drawn.width} ${drawn.height}`}
        role="group" aria-label="Graph of the run; arrow keys follow the edges, Enter explains a job" onKeyDown=${onKeyDown}>
        ${visible.map((edge) => {
          const name = `${edge[0]}>${edge[1]}`;
          return html`<path key=${name} class=${names("edge", lit(edge) && "lit")} d=${way([edge[0], ...(drawn.bends.get(name) ?? []), edge[1]].map((one) => places.get(one)), cell)} />`;
        })}
        ${jobs.map((job) => html`<${Node} key=${job.node} job=${job} place=${places.get(job.node)} cell=${cell} dense=${dense}
          chosen=${job.node === chosen} tab=${job.node === focused} onChoose=${onChoose} onFocus=${setFocused} />`)}
      </svg>
    </div></div>`;
}

/** A curve from place to place. @param {any[]} places @param {any} cell */
function way(places, cell) {
  let x = places[0].x + cell.w; let y = places[0].y + cell.h / 2;
  let drawn = `M${x} ${y}`;
  places.slice(1).forEach((to, at) => {
    const middle = to.y + cell.h / 2; const half = Math.max(16, (to.x - x) / 2);
    drawn += `C${x + half} ${y} ${to.x - half} ${middle} ${to.x} ${middle}`;
    if (at < places.length - 2) drawn += `H${to.x + cell.w}`;
    x = to.x + cell.w; y = middle;
  });
  return drawn;
}

/** @param {{job: any, place: any, cell: any, dense: boolean, chosen: boolean, tab: boolean, onChoose: (node: any) => void, onFocus: (node: any) => void}} props */
function Node({ job, place, cell, dense, chosen, tab, onChoose, onFocus }) {
  if (!place) return null;
  const [tone, icon] = look(job.state);
  const name = job.name || String(job.node);
  const short = name.length > 17 ? `${name.slice(0, 16)}…` : name;
  return html`<g class=${names("node", `tone-${tone}`, dense && "dense", chosen && "chosen")} transform=${`translate(${place.x} ${place.y})`} data-node=${job.node} data-state=${job.state}
    role="button" tabindex=${tab ? 0 : -1} aria-pressed=${chosen ? "true" : "false"} aria-label=${`${name}: ${job.state}`} onClick=${() => onChoose(job.node)} onFocus=${() => onFocus(job.node)}>
    <title>${name}: ${job.state}</title>
    <rect class="frame" width=${cell.w} height=${cell.h} rx=${dense ? 3 : 7} />
    ${dense ? html`<path class="glyph" transform="translate(2 2)" d=${path(icon)} />` : html`
      <path class="glyph" transform="translate(10 14)" d=${path(icon)} />
      <text x="30" y="17">${short}</text><text class="state-word" x="30" y="31">${job.state}${job.attempts > 0 ? `, attempt ${job.attempts + 1}` : ""}</text>`}
  </g>`;
}

/** Lines over time on a canvas (uPlot), with a legend of buttons and a sentence for those who do not see the canvas. */
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { state } from "../store.js";
import { SERIES, seriesColor, token } from "../theme.js";
import uPlot from "../vendor/uplot.js";
import { seriesClass } from "./badge.js";

/**
 * @typedef {{label: string, color: number, values: (number|null)[]}} Series
 * @param {{times: number[], series: Series[], format: (value: number|null) => string, label: string, height?: number}} props
 */
export function Chart({ times, series, format, label, height = 220 }) {
  const box = useRef(/** @type {any} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const values = useRef(/** @type {Record<string, any>} */ ({}));
  const [hidden, setHidden] = useState(/** @type {string[]} */ ([]));
  const shape = series.map((one) => `${one.label}:${one.color}`).join("|");
  const held = useRef(format);
  held.current = format;

  useEffect(() => {
    const options = optionsOf(series, held, height, box.current.clientWidth, (/** @type {number|null} */ at) => {
      series.forEach((one, index) => {
        const data = plot.current?.data[index + 1] ?? [];
        const where = at ?? data.length - 1;
        const cell = values.current[one.label];
        if (cell) cell.textContent = held.current(data[where] ?? null);
      });
    });
    plot.current = new uPlot(options, [times, ...series.map((one) => one.values)], box.current);
    series.forEach((one, index) => hidden.includes(one.label) && plot.current.setSeries(index + 1, { show: false }));
    const watcher = new ResizeObserver(() => {
      const width = box.current?.clientWidth;
      if (width && width !== plot.current.width) plot.current.setSize({ width, height });
    });
    watcher.observe(box.current);
    return () => { watcher.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [shape, state.painted, height]);

  useEffect(() => {
    plot.current?.setData([times, ...series.map((one) => one.values)]);
  }, [times, series]);

  const toggle = (/** @type {string} */ name) => {
    const show = hidden.includes(name);
    setHidden(show ? hidden.filter((one) => one !== name) : [...hidden, name]);
    plot.current?.setSeries(series.findIndex((one) => one.label === name) + 1, { show });
  };
  const last = (/** @type {Series} */ one) => format(one.values[one.values.length - 1] ?? null);
  return html`<figure class="chart">
    <div class="canvas" ref=${box} role="img" aria-label=${`${label}. Now: ${series.map((one) => `${one.label} ${last(one)}`).join(", ") || "no data"}.`}></div>
    <figcaption class="legend">${series.map((one) => html`<button key=${one.label} type="button" class=${seriesClass(one.color)}
      aria-pressed=${hidden.includes(one.label) ? "false" : "true"} onClick=${() => toggle(one.label)}>${one.label}
      <span class="value" ref=${(/** @type {any} */ node) => { values.current[one.label] = node; }}>${last(one)}</span></button>`)}</figcaption>
  </figure>`;
}

const DASHES = [[], [], [], [], [6, 4], [6, 4], [2, 3], [2, 3]];

function optionsOf(/** @type {Series[]} */ series, /** @type {any} */ held, /** @type {number} */ height, /** @type {number} */ width, /** @type {(at: number|null) => void} */ onCursor) {
  const axis = {
    stroke: token("axis"), font: `11px ${token("sans")}`, grid: { stroke: token("grid"), width: 1 }, ticks: { show: false },
  };
  return {
    width, height, padding: [8, 28, 0, 0], legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { time: true },
      y: { range: (/** @type {any} */ _u, /** @type {any} */ _min, /** @type {number} */ max) => [0, max > 0 ? max * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 26, gap: 4, space: 70, values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 0], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 0]] },
      { ...axis, size: 58, gap: 6, space: 34, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((one) => held.current(one)) },
    ],
    series: [{}, ...series.map((one) => ({
      label: one.label, stroke: seriesColor(one.color), width: 1.75, dash: DASHES[one.color % SERIES], spanGaps: false,
      points: { show: false },
    }))],
    hooks: { setCursor: [(/** @type {any} */ u) => onCursor(u.cursor.idx ?? null)] },
  };
}

/** A line without axes. @param {{values: (number|null)[], label: string}} props */
export function Sparkline({ values, label }) {
  const line = useMemo(() => {
    const most = Math.max(1e-9, ...values.map((one) => one ?? 0));
    const step = 100 / Math.max(1, values.length - 1);
    return values.map((one, at) => `${at ? "L" : "M"}${(at * step).toFixed(2)} ${(26 - ((one ?? 0) / most) * 24).toFixed(2)}`).join("");
  }, [values]);
  return html`<svg class="spark" viewBox="0 0 100 28" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${values.length > 1 && html`<path class="area" d=${`${line}L100 28L0 28Z`} /><path d=${line} />`}</svg>`;
}

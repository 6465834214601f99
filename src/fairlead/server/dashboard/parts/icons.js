/** Small drawings; each has a word beside it, so all are hidden from screen readers. */
import { html } from "../html.js";

const PATHS = {
  done: "M2.500 6.500 5 9l5-6",
  failed: "M3 3l6 6M9 3l-6 6",
  running: "M4 2.500v7l5.500-3.500z",
  waiting: "M6 3.200V6l2 1.600M6 1.200a4.800 4.800 0 1 0 0 9.600a4.800 4.800 0 1 0 0-9.600",
  ring: "M6 1.700a4.300 4.300 0 1 0 0 8.600a4.300 4.300 0 1 0 0-8.600",
  paused: "M4.200 2.500v7M7.800 2.500v7",
  again: "M9.600 4.200A4.200 4.200 0 1 0 10.200 6.600M10 1.800v2.600H7.400",
  skipped: "M2 6h8M6 1.200a4.800 4.800 0 1 0 0 9.600a4.800 4.800 0 1 0 0-9.600",
  up: "M6 10V2.500M2.800 5.500 6 2.300l3.200 3.200",
  down: "M6 2v7.500M2.800 6.500 6 9.700l3.200-3.200",
  warn: "M6 1.500 11 10.500H1zM6 4.800v2.600M6 9v.1",
  dot: "M6 4a2 2 0 1 0 0 4a2 2 0 1 0 0-4M6 5.500v1",
  now: "M2 9.500V6M6 9.500V2.500M10 9.500V4.500",
  classes: "M2 3h8M2 6h6M2 9h3.500",
  jobs: "M1.500 3.500h3v-2h-3zM7.500 6h3V4h-3zM7.500 10.500h3v-2h-3zM4.500 2.500h1.500v7h1.500M6 5h1.500",
  streams: "M1.500 3.500c2-1.800 3.500 1.800 5 0s3-1.800 4 0M1.500 8c2-1.800 3.500 1.800 5 0s3-1.800 4 0",
  decisions: "M2 2.500h8M2 6h8M2 9.500h5",
  whatif: "M2 2.500h2.500L8 9.500h2.500M2 9.500h2.500L5.400 7.600M7 4.400 8 2.500h2.500",
  config: "M2 3.500h4M9 3.500h1.500M7.500 2v3M2 8.500h1.500M6.500 8.500H10.500M5 7v3",
  menu: "M1.500 3h9M1.500 6h9M1.500 9h9",
  plus: "M6 2.500v7M2.500 6h7", minus: "M2.500 6h7", close: "M3 3l6 6M9 3l-6 6",
};

/** @param {{name: keyof PATHS}} props */
export const Icon = ({ name }) => html`<svg viewBox="0 0 12 12" aria-hidden="true" width="12" height="12" fill="none"
  stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round"><path d=${PATHS[name]} /></svg>`;

/** @param {keyof PATHS} name */
export const path = (name) => PATHS[name];

export const Mark = () => html`<svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="#0b5cad" />
  <g fill="none" stroke="#fff" stroke-width="2.600" stroke-linecap="round"><path d="M5 9.500h6.500c4 0 4.500 6.500 9 6.500H27" />
  <path d="M5 16h22" opacity=".55" /><path d="M5 22.500h6.500c4 0 4.500-6.500 9-6.500" /></g><circle cx="20.500" cy="16" r="3.400" fill="#fff" /></svg>`;

/**
 * Where the jobs of a run are drawn: columns by the longest way from a root, rows by the middle of what a job needs
 * (the barycenter, a few sweeps each way), so that few edges cross. Linear in edges per sweep.
 */

const SWEEPS = 6;
const DENSE = 120; // jobs above which only squares are drawn

/**
 * @param {{node: any, deps: any[]}[]} jobs
 * `bends` tells through which made-up places an edge over several columns goes, so that it passes between the jobs.
 * @returns {{places: Map<any, {x: number, y: number, level: number, row: number}>, bends: Map<string, string[]>, width: number, height: number, cell: {w: number, h: number}, dense: boolean, columns: any[][]}}
 */
export function layout(jobs) {
  const dense = jobs.length > DENSE;
  const known = new Map(jobs.map((job) => [job.node, job]));
  const level = levels(jobs, known);
  /** @type {any[][]} */ const columns = [];
  for (const job of jobs) (columns[level.get(job.node) ?? 0] ??= []).push(job.node);
  for (let at = 0; at < columns.length; at += 1) columns[at] ??= [];
  const bends = dense ? new Map() : bend(jobs, level, columns);
  order(columns, jobs, known, bends);

  const cell = dense ? { w: 16, h: 16, gapX: 40, gapY: 6 } : { w: 148, h: 40, gapX: 56, gapY: 14 };
  const wrap = dense ? 40 : Infinity; // a very wide level goes on in the next column of squares
  const margin = 20;
  const places = new Map();
  const tallest = Math.max(...columns.map((one) => Math.min(one.length, wrap)));
  const height = tallest * (cell.h + cell.gapY) - cell.gapY + 2 * margin;
  let x = margin;
  columns.forEach((column, at) => {
    const rows = Math.min(column.length, wrap);
    const top = margin + (height - 2 * margin - (rows * (cell.h + cell.gapY) - cell.gapY)) / 2;
    column.forEach((node, row) => {
      const beside = dense ? Math.floor(row / wrap) : 0;
      places.set(node, { x: x + beside * (cell.w + cell.gapY), y: top + (dense ? row % wrap : row) * (cell.h + cell.gapY), level: at, row });
    });
    const wide = dense ? Math.max(1, Math.ceil(column.length / wrap)) : 1;
    x += wide * (cell.w + cell.gapY) - cell.gapY + cell.gapX;
  });
  return { places, bends, width: x - cell.gapX + margin, height, cell, dense, columns: columns.map((one) => one.filter((node) => known.has(node))) };
}

function levels(/** @type {any[]} */ jobs, /** @type {Map<any, any>} */ known) {
  const level = new Map();
  const left = new Map();
  /** @type {Map<any, any[]>} */ const after = new Map();
  for (const job of jobs) {
    const deps = job.deps.filter((/** @type {any} */ one) => known.has(one));
    left.set(job.node, deps.length);
    for (const dep of deps) (after.get(dep) ?? after.set(dep, []).get(dep))?.push(job.node);
  }
  const ready = jobs.filter((job) => left.get(job.node) === 0).map((job) => job.node);
  for (const node of ready) level.set(node, 0);
  for (let at = 0; at < ready.length; at += 1) {
    for (const next of after.get(ready[at]) ?? []) {
      level.set(next, Math.max(level.get(next) ?? 0, (level.get(ready[at]) ?? 0) + 1));
      left.set(next, left.get(next) - 1);
      if (left.get(next) === 0) ready.push(next);
    }
  }
  return level;
}

function bend(/** @type {any[]} */ jobs, /** @type {Map<any, number>} */ level, /** @type {any[][]} */ columns) {
  /** @type {Map<string, string[]>} */ const bends = new Map();
  for (const job of jobs) {
    for (const dep of job.deps) {
      if (!level.has(dep)) continue;
      const through = [];
      for (let at = (level.get(dep) ?? 0) + 1; at < (level.get(job.node) ?? 0); at += 1) {
        const place = `${dep}>${job.node}@${at}`;
        columns[at].push(place);
        through.push(place);
      }
      if (through.length) bends.set(`${dep}>${job.node}`, through);
    }
  }
  return bends;
}

function order(/** @type {any[][]} */ columns, /** @type {any[]} */ jobs, /** @type {Map<any, any>} */ known, /** @type {Map<string, string[]>} */ bends) {
  const row = new Map();
  const number = () => columns.forEach((column) => column.forEach((node, at) => row.set(node, at - column.length / 2)));
  /** @type {Map<any, any[]>} */ const before = new Map();
  /** @type {Map<any, any[]>} */ const after = new Map();
  const link = (/** @type {any} */ from, /** @type {any} */ to) => {
    (after.get(from) ?? after.set(from, []).get(from))?.push(to);
    (before.get(to) ?? before.set(to, []).get(to))?.push(from);
  };
  for (const job of jobs) {
    for (const dep of job.deps.filter((/** @type {any} */ one) => known.has(one))) {
      const way = [dep, ...(bends.get(`${dep}>${job.node}`) ?? []), job.node];
      for (let at = 1; at < way.length; at += 1) link(way[at - 1], way[at]);
    }
  }
  const middle = (/** @type {any[]} */ nodes, /** @type {number} */ own) => (nodes.length ? nodes.reduce((n, one) => n + row.get(one), 0) / nodes.length : own);
  number();
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const forth = sweep % 2 === 0;
    for (const column of forth ? columns : [...columns].reverse()) {
      const keys = new Map(column.map((node) => [node, middle((forth ? before : after).get(node) ?? [], row.get(node))]));
      column.sort((a, b) => (keys.get(a) ?? 0) - (keys.get(b) ?? 0));
      column.forEach((node, at) => row.set(node, at - column.length / 2));
    }
  }
}

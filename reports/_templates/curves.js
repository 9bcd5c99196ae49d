// Curves: throughput, latency with the density of every operation, consumer lag, replication gap.
// All but the last come from cells (bin of time, bucket of latency, how many), added up anew for each view.

const READS = Object.keys(data.functions);
const COLUMN = 3; // pixels, at least
const ENOUGH = 8; // operations in a step of a curve, where there are
const LEAST_STEPS = 24;
const slaves = data.behind.slaves || [];
const layers = data.cells.layers.map(unpacked);
const curves = {};
let shown = null; // the columns in view

function unpacked(layer) {
  const count = layer.steps.length;
  const bins = new Int32Array(count), buckets = new Int16Array(count), n = Float64Array.from(layer.n);
  let place = 0;
  for (let i = 0; i < count; i++) {
    place += layer.steps[i];
    bins[i] = Math.floor(place / data.cells.buckets);
    buckets[i] = place % data.cells.buckets;
  }
  return { f: layer.f, outcome: layer.outcome, bins, buckets, n };
}

const bucketMs = bucket => data.cells.least * 2 ** ((bucket + 0.5) / data.cells.octave);
const bucketEdge = bucket => data.cells.least * 2 ** (bucket / data.cells.octave);
const wanted = layer => view.f ? layer.f === view.f : !READS.includes(layer.f);

function firstAt(bins, wantedBin) {
  let low = 0, high = bins.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bins[middle] < wantedBin) low = middle + 1; else high = middle;
  }
  return low;
}

// Operations in each of some columns over the whole run.
function overall(columns) {
  const sums = new Array(columns).fill(0);
  for (const layer of layers.filter(wanted)) {
    for (let i = 0; i < layer.bins.length; i++) {
      const ms = data.cells.from + layer.bins[i] * data.cells.bin;
      const column = Math.floor((ms - whole.from) / (whole.to - whole.from) * columns);
      if (column >= 0 && column < columns) sums[column] += layer.n[i];
    }
  }
  return sums;
}

// The view cut into columns of whole bins, with what happened in each.
function gathered() {
  const { from, bin, count, buckets } = data.cells;
  const first = Math.max(0, Math.floor((view.from - from) / bin));
  const last = Math.min(count - 1, Math.floor((view.to - from) / bin));
  const each = Math.max(1, Math.ceil((last - first + 1) / (plotWidth() / COLUMN)));
  const start = Math.floor(first / each) * each;
  const columns = Math.max(0, Math.ceil((last + 1 - start) / each));
  const series = { start, each, columns, ms: each * bin, ok: [], fail: [], info: [], dense: new Map(), failed: new Map() };
  for (const outcome of ["ok", "fail", "info"]) series[outcome] = new Float64Array(columns);
  const reach = start + columns * each;
  for (const layer of layers) {
    if (!wanted(layer) || !series[layer.outcome]) continue;
    const dense = layer.outcome === "ok" ? series.dense : series.failed;
    for (let i = firstAt(layer.bins, start); i < layer.bins.length && layer.bins[i] < reach; i++) {
      const column = Math.floor((layer.bins[i] - start) / each);
      const place = column * buckets + layer.buckets[i];
      series[layer.outcome][column] += layer.n[i];
      dense.set(place, (dense.get(place) || 0) + layer.n[i]);
    }
  }
  series.edges = Array.from({ length: columns + 1 }, (_, i) => from + (start + i * each) * bin);
  series.middles = series.edges.slice(0, columns).map(ms => ms + series.ms / 2);
  const given = data.cells.delivered;
  series.delivered = summed(view.f === "read" ? given.read : given.poll || given.pop, series);
  series.steps = steps(series);
  series.quantiles = quantiles(series);
  series.lag = Object.values(data.cells.lag).map(values =>
    series.middles.map((_, i) => values[Math.min(count - 1, start + (i + 1) * each - 1)]));
  return series;
}

function summed(values, series) {
  const sums = new Float64Array(series.columns);
  for (let i = 0; values && i < series.columns * series.each && series.start + i < values.length; i++) {
    sums[Math.floor(i / series.each)] += values[series.start + i];
  }
  return sums;
}

// Columns put together, so that a rate or a quantile is of more than one or two operations.
function steps(series) {
  const total = ["ok", "fail", "info"].reduce((sum, name) => sum + series[name].reduce((a, b) => a + b, 0), 0);
  const most = Math.max(1, Math.floor(series.columns / LEAST_STEPS));
  const each = Math.min(most, Math.max(1, Math.ceil(series.columns * ENOUGH / Math.max(1, total))));
  const count = Math.ceil(series.columns / each);
  const made = { each, count, edges: [] };
  for (let i = 0; i < count; i++) made.edges.push(series.edges[i * each]);
  made.edges.push(series.edges[series.columns]);
  for (const name of ["ok", "fail", "info", "delivered"]) {
    made[name] = new Float64Array(count);
    series[name].forEach((n, i) => { made[name][Math.floor(i / each)] += n; });
  }
  made.middles = Array.from({ length: count }, (_, i) => (made.edges[i] + made.edges[i + 1]) / 2);
  made.rate = name => Array.from(made[name], (n, i) => n / (made.edges[i + 1] - made.edges[i]) * 1000);
  return made;
}

function quantiles(series) {
  const { buckets } = data.cells;
  const bySteps = Array.from({ length: series.steps.count }, () => new Map());
  for (const [place, n] of series.dense) {
    const step = bySteps[Math.floor(Math.floor(place / buckets) / series.steps.each)];
    step.set(place % buckets, (step.get(place % buckets) || 0) + n);
  }
  const found = { p50: [], p99: [], max: [] };
  bySteps.forEach((counts, step) => {
    const cells = [...counts].sort((a, b) => a[0] - b[0]);
    for (const [name, share] of [["p50", 0.5], ["p99", 0.99], ["max", 1]]) {
      let left = share * series.steps.ok[step] - 1e-9;
      const cell = cells.find(([, n]) => (left -= n) <= 0) || cells[cells.length - 1];
      found[name].push(cell ? bucketMs(cell[0]) : null);
    }
  });
  return found;
}

// ---- drawing, by uPlot

const colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "card", "ok", "fail", "info", "delivered", "p50", "p99", "dense", "other", "partition", "loss", "kill", "pause", "power"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

function makeCurve(id, height, series, scale, axis, hooks) {
  const holder = $(id).querySelector(".plot");
  holder.replaceChildren();
  holder.style.height = `${height}px`;
  const options = {
    width: size.width, height, padding: [8, RIGHT, 6, 0], series: [{}, ...series], hooks,
    cursor: { show: false }, legend: { show: false }, select: { show: false },
    scales: { x: { time: false, auto: false }, y: scale },
    axes: [{ show: false }, {
      size: size.gutter, gap: 6, font: FONT, stroke: colours.soft, ticks: { show: false },
      grid: { stroke: colours.line, width: 1 }, ...axis,
    }],
  };
  curves[id] = new uPlot(options, [[view.from, view.to], ...series.map(() => [null, null])], holder);
  $(id).hidden = false;
}

function makeCurves() {
  readColours();
  for (const id in curves) { curves[id].destroy(); delete curves[id]; }
  if (!layers.length) return;
  const stair = uPlot.paths.stepped({ align: 1 });
  const area = name => ({ stroke: colours[name], fill: colours[name], width: 0, paths: stair, points: { show: false } });
  const line = (colour, width = 1.5) => ({ stroke: colour, width, points: { show: false }, spanGaps: false });
  const thousands = (u, splits) => splits.map(n => n >= 10000 ? `${+(n / 1000).toPrecision(3)}k` : `${+n.toPrecision(3)}`);
  const from0 = name => ({ splits: () => [0, tops[name] / 2, tops[name]], values: thousands });
  const linear = name => ({ auto: false, range: () => [0, tops[name]] });
  makeCurve("rate", 132, [area("info"), area("fail"), area("ok"), { ...line(colours.delivered), paths: stair }], linear("rate"), from0("rate"), shades());
  const [low, high] = latencyRange();
  const powers = [];
  for (let power = Math.round(Math.log10(low)); power <= Math.round(Math.log10(high)); power++) powers.push(10 ** power);
  makeCurve("latency", 168, [line(colours.p99), line(colours.p50, 2)],
    { distr: 3, log: 10, auto: false, range: () => [low, high] },
    { splits: () => powers, values: () => powers.map(latency), filter: (u, splits) => splits }, { drawClear: [...shades().drawClear, drawDensity] });
  const hues = [colours.delivered, colours.p99, colours.loss, colours.ok, colours.kill, colours.other];
  const lines = names => names.map((_, i) => line(hues[i % hues.length]));
  const groups = Object.keys(data.cells.lag);
  if (groups.length) {
    makeCurve("lag", 92, lines(groups), linear("lag"), from0("lag"), shades());
    nameLines("groups", groups, hues);
  }
  if (slaves.length) {
    const stairs = lines(slaves).map(one => ({ ...one, paths: stair }));
    makeCurve("behind", 92, stairs, linear("behind"), { ...from0("behind"), values: (u, splits) => splits.map(bytes) }, shades());
    nameLines("slaves", slaves.map(slave => slave.name), hues);
  }
}

function nameLines(id, names, hues) {
  $(id).replaceChildren(...names.map((name, i) => {
    const key = document.createElement("span");
    key.className = "key drawn";
    key.style.setProperty("--hue", hues[i % hues.length]);
    key.textContent = name;
    return key;
  }));
}

const tops = { rate: 1, lag: 1, behind: 1 };

function latencyRange() {
  let low = Infinity, high = 0;
  for (const layer of layers.filter(wanted)) {
    for (const bucket of layer.buckets) { low = Math.min(low, bucket); high = Math.max(high, bucket); }
  }
  if (low > high) return [0.1, 10];
  const floor = 10 ** Math.floor(Math.log10(bucketEdge(low)) + 1e-9);
  return [floor, Math.max(floor * 10, 10 ** Math.ceil(Math.log10(bucketEdge(high + 1)) - 1e-9))];
}

// What is not often exceeded: the burst of a final read must not flatten the rest.
function usual(values) {
  const some = Array.from(values).filter(value => value > 0).sort((a, b) => a - b);
  return some.length ? some[Math.floor((some.length - 1) * 0.98)] : 0;
}

function drawCurves() {
  if (!layers.length) return;
  const series = shown = gathered();
  const [ok, fail, info, delivered] = ["ok", "fail", "info", "delivered"].map(series.steps.rate);
  const done = ok.map((n, i) => n + fail[i]), all = done.map((n, i) => n + info[i]);
  tops.rate = nice(Math.max(1.15 * Math.max(usual(all), usual(delivered)), 1e-3));
  const peak = Math.max(0, ...all, ...delivered);
  $("peak").textContent = peak > tops.rate ? `(peak ${amount(peak)}, cut)` : "";
  tops.lag = nice(Math.max(1, ...series.lag.flat().map(n => n || 0)));
  const closed = values => [...values, 0];
  show("rate", [series.steps.edges, closed(all), closed(done), closed(ok), closed(delivered)]);
  show("latency", [series.steps.middles, series.quantiles.p99, series.quantiles.p50]);
  if (curves.lag) show("lag", [series.edges, ...series.lag.map(values => [values[0] ?? 0, ...values])]);
  if (curves.behind) drawBehind();
}

function drawBehind() {
  const { times } = data.behind;
  const seen = slaves.flatMap(slave => slave.behind.filter((n, i) => n && times[i] <= view.to && (times[i + 1] ?? Infinity) > view.from));
  tops.behind = nice(Math.max(1000, ...seen));
  show("behind", [times, ...slaves.map(slave => slave.behind)]);
}

function show(id, columns) {
  const curve = curves[id];
  if (columns[0].length < 2) columns = [[view.from, view.to], ...columns.slice(1).map(() => [null, null])];
  if (curve.width !== size.width) curve.setSize({ width: size.width, height: curve.height });
  curve.batch(() => {
    curve.setData(columns, false);
    curve.setScale("x", { min: view.from, max: view.to });
    const [low, high] = curve.scales.y.range();
    curve.setScale("y", { min: low, max: high });
  });
}

function shades() {
  return { drawClear: [u => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const bar of data.lanes.flatMap(lane => lane.kind === "fault" ? lane.bars : [])) {
      if (!bar.c.startsWith("fault ") || bar.e < view.from || bar.b > view.to) continue;
      const kind = bar.c.replace(/fault|doubtful/g, "").trim();
      const left = u.valToPos(bar.b, "x", true), right = u.valToPos(bar.e, "x", true);
      ctx.globalAlpha = bar.k === view.select ? 0.2 : 0.08;
      ctx.fillStyle = colours[kind] || colours.other;
      ctx.fillRect(left, bbox.top, Math.max(1, right - left), bbox.height);
    }
    ctx.restore();
  }] };
}

// Every operation: the more of them in a place, the stronger it is.
function drawDensity(u) {
  if (!shown) return;
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  paint(u, shown.dense, colours.dense);
  paint(u, shown.failed, colours.fail);
  ctx.restore();
}

function paint(u, cells, colour) {
  const { buckets } = data.cells;
  let most = 1;
  for (const n of cells.values()) most = Math.max(most, n);
  u.ctx.fillStyle = colour;
  for (const [place, n] of cells) {
    const column = Math.floor(place / buckets), bucket = place % buckets;
    const left = Math.floor(u.valToPos(shown.edges[column], "x", true));
    const right = Math.ceil(u.valToPos(shown.edges[column + 1], "x", true));
    const top = Math.floor(u.valToPos(bucketEdge(bucket + 1), "y", true));
    const bottom = Math.ceil(u.valToPos(bucketEdge(bucket), "y", true));
    u.ctx.globalAlpha = 0.22 + 0.6 * Math.log(1 + n) / Math.log(1 + most);
    u.ctx.fillRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top));
  }
  u.ctx.globalAlpha = 1;
}

// What the curves say of a moment.
function curveWords(ms) {
  if (!shown || !shown.columns) return [];
  const column = Math.floor((ms - shown.edges[0]) / shown.ms);
  if (column < 0 || column >= shown.columns) return [];
  const step = Math.floor(column / shown.steps.each);
  const rate = name => amount(shown.steps.rate(name)[step]);
  const said = [`${rate("ok")} done, ${rate("fail")} refused, ${rate("info")} unknown a second`];
  if (shown.steps.delivered[step]) said.push(`${rate("delivered")} messages delivered a second`);
  const { p50, p99, max } = shown.quantiles;
  if (p50[step] !== null) said.push(`p50 ${latency(p50[step])}, p99 ${latency(p99[step])}, slowest ${latency(max[step])}`);
  Object.keys(data.cells.lag).forEach((group, i) => said.push(`${group} is ${amount(shown.lag[i][column])} behind`));
  if (curves.behind) {
    const bin = firstAt(data.behind.times, ms + 1e-9) - 1;
    for (const { name, behind, speed } of slaves) {
      if (bin >= 0 && behind[bin] !== null) said.push(`${name} is ${bytes(behind[bin])} behind, takes ${bytes(speed[bin])} a second`);
    }
  }
  return said;
}

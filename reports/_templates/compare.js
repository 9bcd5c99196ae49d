// Two runs' curves on one axis, with the faults of each as bands.
(() => {
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const runs = [data.one, data.other].map(run => ({ flow: run.flow || {}, faults: run.faults || [] }));
const BAND = 7; // pixels
const CURVES = { ok: [150, false], undone: [100, false], p50: [130, true], p99: [130, true] };
const made = [];

function colours() {
  const style = getComputedStyle(document.documentElement);
  return name => style.getPropertyValue(`--${name}`).trim();
}

function latency(ms) {
  if (ms < 1) return `${+(ms * 1000).toPrecision(2)} µs`;
  return ms < 1000 ? `${+ms.toPrecision(3)} ms` : `${+(ms / 1000).toPrecision(3)} s`;
}

function joined(name) {
  const tables = runs.map(run => [run.flow.t || [], run.flow[name] || []]);
  return uPlot.join(tables, [[0, 1], [0, 1]]);
}

function bands(colour) {
  return { drawClear: [u => {
    const { ctx, bbox } = u;
    const high = BAND * devicePixelRatio;
    ctx.save();
    ctx.globalAlpha = 0.55;
    runs.forEach((run, which) => run.faults.forEach(fault => {
      const left = Math.max(bbox.left, u.valToPos(fault.from, "x", true));
      const right = Math.min(bbox.left + bbox.width, u.valToPos(fault.to, "x", true));
      if (right < bbox.left || left > bbox.left + bbox.width) return;
      ctx.fillStyle = colour(fault.style);
      ctx.fillRect(left, which ? bbox.top + bbox.height - high : bbox.top, Math.max(2, right - left), high);
    }));
    ctx.restore();
  }] };
}

function said(s) {
  const lines = [`${s.toFixed(2)} s`];
  runs.forEach((run, which) => {
    const times = run.flow.t || [];
    let at = times.findIndex(t => t >= s);
    if (at < 0) at = times.length - 1;
    if (at < 0) return;
    const { ok, undone, p50, p99 } = run.flow;
    const quantiles = p50[at] === null ? "" : `, p50 ${latency(p50[at])}, p99 ${latency(p99[at])}`;
    lines.push(`${"AB"[which]}: ${Math.round(ok[at])} done, ${Math.round(undone[at])} not a second${quantiles}`);
    for (const fault of run.faults.filter(one => one.from <= s && s < one.to).slice(0, 3)) lines.push(`${"AB"[which]}: ${fault.words}`);
  });
  return lines.join("\n");
}

function tell(u) {
  const { left } = u.cursor, readout = $("readout");
  if (left === null || left < 0) { readout.hidden = true; return; }
  readout.textContent = said(u.posToVal(left, "x"));
  readout.hidden = false;
  const box = u.over.getBoundingClientRect();
  const beside = Math.min(box.left + left + 16, innerWidth - readout.offsetWidth - 8);
  readout.style.left = `${Math.max(4, beside)}px`;
  readout.style.top = `${Math.max(4, box.top - readout.offsetHeight - 4)}px`;
}

function draw() {
  const colour = colours();
  const width = Math.floor($("curves").clientWidth);
  made.splice(0).forEach(plot => plot.destroy());
  const line = name => ({ stroke: colour(name), width: 1.6, points: { show: false }, spanGaps: false });
  const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  for (const [name, [height, slow]] of Object.entries(CURVES)) {
    const table = joined(name);
    if (!table[0].length) { $(name).textContent = "Nothing was recorded."; continue; }
    const y = slow ? { distr: 3, log: 10 } : { range: (u, low, high) => [0, Math.max(1, (high || 0) * 1.08)] };
    made.push(new uPlot({
      width, height, legend: { show: false }, hooks: { ...bands(colour), setCursor: [tell] },
      cursor: { y: false, points: { show: false }, sync: { key: "runs" }, drag: { x: true, y: false, setScale: true } },
      scales: { x: { time: false }, y },
      series: [{}, line("one"), line("other-run")],
      axes: [{ ...axis, values: (u, splits) => splits.map(s => `${+s.toFixed(3)} s`) },
        { ...axis, size: 64, values: (u, splits) => splits.map(v => v === null ? "" : slow ? latency(v) : v >= 10000 ? `${v / 1000}k` : `${v}`) }],
    }, table, $(name)));
  }
}

draw();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();

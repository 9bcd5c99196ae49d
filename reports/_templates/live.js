// A run as it goes on: what its folder says, once a second, until there is a verdict.
(() => {
"use strict";
const $ = id => document.getElementById(id);
const frame = $("live");
const STORY = { starting: "raise", raised: "start", load: "load", healed: "recover", drain: "final read", collected: "take down", checking: "check" };
const number = value => typeof value === "number" ? Math.round(value).toLocaleString("en") : "–";
const seconds = value => typeof value === "number" ? `${value.toFixed(0)} s` : "";
const ms = value => typeof value === "number" ? `${value.toPrecision(3)} ms` : "–";
let plot = null;
let phase = "";

function list(id, lines, none) {
  $(id).replaceChildren(...(lines.length ? lines : [none]).map(text => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}

function cluster(status) {
  const own = status.words || {}, word = name => own[name] || name;
  const masters = Object.entries(status.masters || {});
  const lines = masters.map(([set, node]) => `${set}: ${word("master")} ${node || "none"}, ${word("epoch")} ${(status.epochs || {})[set] ?? "?"}`);
  if ((status.in_set || []).length) lines.push(`${word("SyncStateSet")}: ${status.in_set.join(", ")}`);
  if (status.controller_leader) lines.push(`controller leader: ${status.controller_leader}`);
  return lines;
}

function draw(message) {
  const status = message.status || {}, counts = status.counts || {}, rows = message.rows || {};
  const word = STORY[status.phase] || status.phase || "…";
  $("phase").textContent = word;
  $("load").textContent = typeof status.load_s === "number" ? `${seconds(status.load_s)} of load` : "";
  $("now").textContent = number(status.rate);
  $("counts").textContent = `${number(counts.ok)} acknowledged, ${number(counts.fail)} refused, ${number(counts.info)} unknown, ${number(counts.polled)} delivered`;
  $("latency").textContent = ms(counts.p50_ms);
  $("slow").textContent = `median; p99 ${ms(counts.p99_ms)}`;
  $("rows").textContent = number(Object.values(rows).reduce((sum, n) => sum + n, 0));
  $("tables").textContent = Object.entries(rows).map(([table, n]) => `${number(n)} ${table}`).join(", ");
  const faults = (status.faults || []).map(fault => `${fault.words}: ${fault.stage}${["partial", "failed"].includes(fault.state) ? `, ${fault.state}` : ""}, ${seconds(fault.for_s)}`);
  if (status.healed) faults.push(`${status.healed} healed, last ${status.last_healed}`);
  list("faults", faults, "none yet");
  list("cluster", cluster(status), "not known yet");
  list("lines", [...(status.said || [])].reverse(), "nothing yet");
  if (word !== phase) $("said").textContent = `Phase: ${word}`;
  phase = word;
  rates(status.rates || []);
}

function rates(values) {
  if (!values.length) return;
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(`--${name}`).trim();
  const data = [values.map((_, i) => i - values.length + 1), values];
  const width = Math.max(200, $("rates").clientWidth);
  if (plot) { plot.setSize({ width, height: 150 }); plot.setData(data); return; }
  const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  plot = new uPlot({
    width, height: 150, cursor: { show: false }, legend: { show: false },
    scales: { x: { time: false }, y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
    series: [{}, { stroke: colour("ok"), fill: colour("ok"), width: 1, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }],
    axes: [{ ...axis, values: (u, splits) => splits.map(s => `${s} s`) }, axis],
  }, data, $("rates"));
}

// Nothing more is recorded: what was said last stays, with what becomes of it.
function over(state, why) {
  const word = STORY[state] || state;
  $("phase").textContent = word;
  $("load").textContent = why;
  if (word !== phase) $("said").textContent = `Phase: ${word}. ${why}`;
  phase = word;
}

let running = !frame.hidden;
const events = new EventSource(frame.dataset.events);
events.addEventListener("message", event => {
  const message = JSON.parse(event.data);
  if (message.state === "running") {
    running = true;
    frame.hidden = false;
    draw(message);
  } else if (message.state === "judged") {
    events.close();
    if (running) location.reload();
  } else if (message.state === "checking") {
    running = true;
    over("checking", "");
  } else if (running) {
    over("over", message.why);
  }
});
})();

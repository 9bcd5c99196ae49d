// The one time axis: what the page knows, which part of it is in view, and where a moment stands.
// Times are milliseconds since the load began.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const NS = "http://www.w3.org/2000/svg";
const LEAST_MS = 0.05; // of a view
const RIGHT = 14;

const whole = { from: data.begin, to: data.end };
const view = { from: whole.from, to: whole.to, select: "", f: "", search: "" };
const size = { width: 0, gutter: 0, narrow: false };

function measure() {
  size.width = Math.floor($("time").clientWidth);
  size.narrow = size.width < 700;
  size.gutter = size.narrow ? 48 : 150;
}

const plotWidth = () => Math.max(60, size.width - size.gutter - RIGHT);
const x = ms => size.gutter + (ms - view.from) / (view.to - view.from) * plotWidth();
const at = px => view.from + (px - size.gutter) / plotWidth() * (view.to - view.from);
const isWhole = () => (view.to - view.from) >= (whole.to - whole.from) * (1 - 1e-9);

// The view moved within the run; never narrower than can be distinguished.
function look(from, to) {
  const length = Math.min(Math.max(to - from, LEAST_MS), whole.to - whole.from);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - length / 2, whole.from), whole.to - length);
  view.to = view.from + length;
}

function zoom(factor, around = (view.from + view.to) / 2) {
  const share = (around - view.from) / (view.to - view.from);
  const length = Math.min((view.to - view.from) * factor, whole.to - whole.from);
  const kept = Math.max(length, LEAST_MS);
  look(around - share * kept, around + (1 - share) * kept);
}

function pan(share) {
  const step = (view.to - view.from) * share;
  look(view.from + step, view.to + step);
}

// ---- numbers in words

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * power).find(step => step >= value * 0.999);
}

function digits(step) {
  return Math.max(0, Math.min(6, -Math.floor(Math.log10(step / 1000) + 1e-9)));
}

const inSeconds = ms => `${(ms / 1000).toFixed(digits((view.to - view.from) / 300))} s`;

function latency(ms) {
  if (ms < 1) return `${+(ms * 1000).toPrecision(2)} µs`;
  return ms < 1000 ? `${+ms.toPrecision(3)} ms` : `${+(ms / 1000).toPrecision(3)} s`;
}

const bytes = n => n >= 1e6 ? `${+(n / 1e6).toPrecision(3)} MB` : n >= 1e3 ? `${+(n / 1e3).toPrecision(3)} kB` : `${Math.round(n)} B`;
const amount = n => n >= 10 || n === 0 ? Math.round(n).toLocaleString("en") : n.toPrecision(2);

// Moments at which the axis has a line, about every hundred and ten pixels.
function ticks() {
  const step = nice((view.to - view.from) / Math.max(2, plotWidth() / 110));
  const found = [];
  for (let n = Math.ceil(view.from / step); n * step <= view.to; n++) found.push(n * step);
  return { step, found };
}

// ---- the address keeps the view

const SELECTABLE = /^(fault|finding)-\d+$|^node-.+$/;

function address() {
  const words = [];
  if (!isWhole()) words.push(`t=${(view.from / 1000).toFixed(6)}~${(view.to / 1000).toFixed(6)}`);
  if (view.select) words.push(`select=${encodeURIComponent(view.select)}`);
  if (view.f) words.push(`f=${encodeURIComponent(view.f)}`);
  if (view.search) words.push(`search=${encodeURIComponent(view.search)}`);
  return words.length ? `#${words.join("&")}` : "";
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return ""; }
}

// What an address says; null when it only names a place on the page.
function addressed(hash) {
  const text = hash.replace(/^#/, "");
  if (SELECTABLE.test(decoded(text))) return { select: decoded(text), kept: true };
  if (text && !text.includes("=")) return null;
  const parsed = { select: "", f: "", search: "" };
  for (const word of text.split("&")) {
    const [name, value] = [word.slice(0, word.indexOf("=")), decoded(word.slice(word.indexOf("=") + 1))];
    const [from, to] = value.split("~").map(part => parseFloat(part) * 1000);
    if (name === "t" && Number.isFinite(from) && to > from) Object.assign(parsed, { from, to });
    if (name === "select" && SELECTABLE.test(value)) parsed.select = value;
    if (name === "f" || name === "search") parsed[name] = value;
  }
  return parsed;
}

function keepAddress(step) {
  const hash = address();
  if (hash === location.hash || (!hash && addressed(location.hash) === null)) return;
  const url = location.href.split("#")[0] + hash;
  try { history[step ? "pushState" : "replaceState"](null, "", url); } catch { location.hash = hash; }
}

// Hands and feet: pointer, wheel, touch and keyboard move the view; the page is drawn once a frame.

let waiting = 0;
let step = false;

function refresh(asStep) {
  step = step || Boolean(asStep);
  if (!waiting) waiting = requestAnimationFrame(draw);
}

function draw() {
  waiting = 0;
  const before = size.width;
  measure();
  if (size.width !== before) makeCurves();
  drawOverview();
  drawLanes();
  drawCurves();
  drawAxis("axis-top");
  drawAxis("axis");
  filterPage();
  drawLog();
  $("window").textContent = `${inSeconds(view.from)} to ${inSeconds(view.to)}`;
  keepAddress(step);
  step = false;
  $("time").dataset.drawn = `${view.from} ${view.to}`;
}

// ---- the pointer

const time = $("time");
const pointers = new Map();
let drag = null; // { mode, start, moved }

const here = event => event.clientX - time.getBoundingClientRect().left;
const onPlot = px => Math.min(Math.max(px, size.gutter), size.gutter + plotWidth());

time.addEventListener("pointerdown", event => {
  if (event.button > 1) return;
  pointers.set(event.pointerId, here(event));
  const small = $("overview").contains(event.target);
  const mode = small ? "overview" : event.shiftKey || event.button === 1 ? "pan" : "band";
  drag = pointers.size > 1 ? { mode: "pinch", view: { ...view }, start: [...pointers.values()] }
    : { mode, start: here(event), from: view.from, to: view.to, moved: false, target: event.target };
  if (mode === "overview") lens(here(event), drag);
  try { time.setPointerCapture(event.pointerId); } catch { /* it is gone already */ }
});

time.addEventListener("pointermove", event => {
  const px = here(event);
  if (pointers.has(event.pointerId)) pointers.set(event.pointerId, px);
  if (!drag) return point(event);
  if (drag.mode === "pinch") return pinch();
  drag.moved = drag.moved || Math.abs(px - drag.start) > 4;
  if (!drag.moved) return undefined;
  hideReadout();
  if (drag.mode === "pan") {
    const shift = (drag.start - px) / plotWidth() * (drag.to - drag.from);
    look(drag.from + shift, drag.to + shift);
    refresh();
  } else if (drag.mode === "overview") {
    lens(px, drag);
  } else {
    const [left, right] = [onPlot(drag.start), onPlot(px)].sort((a, b) => a - b);
    Object.assign($("band").style, { left: `${left}px`, width: `${right - left}px` });
    $("band").hidden = false;
  }
  return undefined;
});

time.addEventListener("pointerup", event => {
  pointers.delete(event.pointerId);
  const done = drag;
  drag = null;
  $("band").hidden = true;
  if (!done || done.mode === "pinch") return;
  if (!done.moved && done.mode !== "overview") {
    const hit = done.target.closest && done.target.closest("[data-k]");
    select(hit ? (hit.dataset.k === view.select ? "" : hit.dataset.k) : "");
  } else if (done.mode === "band") {
    const [from, to] = [at(onPlot(done.start)), at(onPlot(here(event)))].sort((a, b) => a - b);
    look(from, to);
    announce();
  }
  refresh(true);
});

time.addEventListener("pointercancel", event => {
  pointers.delete(event.pointerId);
  drag = null;
  $("band").hidden = true;
});
time.addEventListener("pointerleave", hideReadout);
time.addEventListener("dblclick", event => {
  if (event.target.closest("[data-k]")) return zoomToSelection();
  look(whole.from, whole.to);
  return refresh(true);
});

// In the small picture: the view follows the pointer; where all is in view, it becomes a tenth.
function lens(px, start) {
  const length = start.from <= whole.from && start.to >= whole.to ? (whole.to - whole.from) / 10 : start.to - start.from;
  const middle = overviewAt(onPlot(px));
  look(middle - length / 2, middle + length / 2);
  refresh();
}

function pinch() {
  const now = [...pointers.values()].sort((a, b) => a - b);
  const was = [...drag.start].sort((a, b) => a - b);
  if (now.length < 2 || was.length < 2) return;
  const scale = (was[1] - was[0]) / Math.max(10, now[1] - now[0]);
  const length = (drag.view.to - drag.view.from) * scale;
  const middle = drag.view.from + ((was[0] + was[1]) / 2 - size.gutter) / plotWidth() * (drag.view.to - drag.view.from);
  const share = ((now[0] + now[1]) / 2 - size.gutter) / plotWidth();
  look(middle - share * length, middle + (1 - share) * length);
  refresh();
}

time.addEventListener("wheel", event => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), at(onPlot(here(event))));
    refresh();
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    pan(event.deltaX / plotWidth());
    refresh();
  }
}, { passive: false });

// ---- hover tells

function point(event) {
  const px = here(event);
  if (px < size.gutter || px > size.gutter + plotWidth()) return hideReadout();
  const ms = $("overview").contains(event.target) ? overviewAt(px) : at(px);
  const bar = event.target.__bar;
  const lines = [`${(ms / 1000).toFixed(Math.max(3, digits((view.to - view.from) / 300)))} s`];
  if (bar && bar.tip) lines.push(bar.tip);
  lines.push(...standing(ms, bar), ...curveWords(ms));
  const readout = $("readout");
  readout.textContent = lines.join("\n");
  readout.hidden = false;
  place(readout, event);
  $("cursor").style.left = `${px}px`;
  $("cursor").hidden = false;
  return undefined;
}

function place(readout, event) {
  const box = readout.getBoundingClientRect();
  const left = event.clientX + 18 + box.width > innerWidth ? event.clientX - box.width - 14 : event.clientX + 18;
  const top = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
  Object.assign(readout.style, { left: `${Math.max(4, left)}px`, top: `${Math.max(4, top)}px` });
}

// Who leads, how many are in sync, which faults are on.
function standing(ms, pointed) {
  const said = [];
  for (const lane of data.lanes) {
    if (!["row", "fault"].includes(lane.kind)) continue;
    const on = lane.bars.filter(bar => bar !== pointed && bar.e !== null && bar.b <= ms && ms < bar.e && bar.w);
    if (on.length) said.push(`${lane.name}: ${[...new Set(on.map(bar => bar.w[0]))].slice(0, 3).join("; ")}`);
  }
  return said.slice(0, 6);
}

function hideReadout() {
  $("readout").hidden = true;
  $("cursor").hidden = true;
}

// ---- the keyboard and the buttons

const ACTIONS = {
  left: () => pan(-0.25), right: () => pan(0.25), in: () => zoom(0.5), out: () => zoom(2),
  whole: () => look(whole.from, whole.to),
};
const KEYS = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", "0": "whole", Home: "whole" };

function act(name) {
  ACTIONS[name]();
  announce();
  refresh(true);
}

const announce = () => say(`Showing ${inSeconds(view.from)} to ${inSeconds(view.to)}.`);

time.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (KEYS[event.key]) act(KEYS[event.key]);
  else if (event.key === "[" || event.key === "]") nextFault(event.key === "]" ? 1 : -1);
  else if (event.key === "Enter") zoomToSelection();
  else if (event.key === "Escape") select("");
  else return;
  event.preventDefault();
});

for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => act(button.dataset.do));
$("clear").addEventListener("click", () => { select(""); time.focus({ preventScroll: true }); });
$("zoom-to").addEventListener("click", () => {
  zoomToSelection();
  time.scrollIntoView({ block: "nearest" });
});
$("search").addEventListener("input", () => { view.search = $("search").value; refresh(); });

document.addEventListener("click", event => {
  const link = event.target.closest && event.target.closest("a[href^='#']");
  if (link) follow(link, event);
  const copy = event.target.closest && event.target.closest("[data-copy]");
  if (copy) copied(copy);
});

// A link to a fault or finding selects it, and keeps the view.
function follow(link, event) {
  const linked = addressed(link.getAttribute("href"));
  if (!linked || !linked.kept || !exists(linked.select)) return;
  event.preventDefault();
  select(linked.select);
  const target = link.classList.contains("select") ? time : $(linked.select);
  requestAnimationFrame(() => target.scrollIntoView({ block: link.classList.contains("select") ? "center" : "nearest" }));
}

async function copied(button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Select and copy";
  say(done ? "Copied." : "It could not be copied.");
}

// ---- which operations

function offerFunctions() {
  const names = [...new Set(layers.map(layer => layer.f))];
  const calls = names.filter(name => !READS.includes(name));
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  const all = calls.length ? calls.join(", ") : "none (reads only)";
  const single = calls.length > 1 ? names : names.filter(name => READS.includes(name));
  $("functions").replaceChildren(option("", all), ...single.map(name => option(name, data.functions[name] || name)));
  $("pick").hidden = single.length === 0;
  $("functions").addEventListener("change", () => {
    view.f = $("functions").value;
    makeCurves();
    refresh(true);
  });
}

// ---- light and dark

const THEMES = { "": "system", light: "light", dark: "dark" };
const root = document.documentElement;

function setTheme(name) {
  if (name) root.dataset.theme = name; else delete root.dataset.theme;
  $("theme").textContent = `Theme: ${THEMES[name]}`;
  if (size.width) { makeCurves(); refresh(); }
}

$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(root.dataset.theme || "") + 1) % names.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(root.dataset.theme || ""));

// ---- paper

let screenTheme = null;
addEventListener("beforeprint", () => {
  screenTheme = root.dataset.theme || "";
  time.style.width = "680px";
  setTheme("light");
  draw();
});
addEventListener("afterprint", () => {
  time.style.width = "";
  setTheme(screenTheme || "");
});

// ---- coming here

function arrive() {
  const linked = addressed(location.hash);
  if (!linked) return;
  if (!linked.kept) {
    const known = [...$("functions").options].some(option => option.value === linked.f);
    Object.assign(view, { f: known ? linked.f : "", search: linked.search });
    $("functions").value = view.f;
    $("search").value = view.search;
    look(linked.from ?? whole.from, linked.to ?? whole.to);
    makeCurves();
  }
  view.select = exists(linked.select) ? linked.select : "";
  refresh();
}

for (const id of ["time", "tools", "legend", "theme"]) $(id).hidden = false;
const asked = location.hash;
offerFunctions();
measure();
makeCurves();
arrive();
draw();
const target = /^#[\w-]+$/.test(asked) ? $(asked.slice(1)) : null;
if (target) target.scrollIntoView();
addEventListener("hashchange", arrive);
addEventListener("popstate", arrive);
new ResizeObserver(() => refresh()).observe(time);

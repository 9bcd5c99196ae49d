// Lanes: rows of bars on the time axis, the axis itself, and the whole run in small above them.

const HEIGHTS = { thin: [14, 14], fault: [17, 21], marks: [12, 14], row: [16, 19], node: [14, 18] };
const LETTER = 6.1;
const GAP = 7;
const STRONG = /^(fault|down|paused|role (master|leader)|set alone)/;
let hovered = null; // a bar under the pointer

function element(name, attributes, parent, text) {
  const made = document.createElementNS(NS, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function fitting(words, width) {
  return (words || []).find(word => word.length * LETTER + 8 <= width) || "";
}

function short(name, width) {
  const letters = Math.floor(width / LETTER);
  return name.length <= letters ? name : `${name.slice(0, Math.max(1, letters - 1))}…`;
}

function drawLanes() {
  const holder = $("lanes");
  const svg = element("svg", { width: size.width, role: "img", "aria-label": laneWords() });
  const clip = element("clipPath", { id: "plot-clip" }, svg);
  const under = element("g", { "clip-path": "url(#plot-clip)" }, svg);
  const inner = element("g", { "clip-path": "url(#plot-clip)" }, svg);
  let y = 4;
  let below = 0;
  for (const lane of data.lanes) {
    const [height, step] = HEIGHTS[lane.kind] || HEIGHTS.row;
    if (size.narrow) y += 14;
    const label = size.narrow ? [8, y - 4, size.width - 16] : [10, y + height / 2 + 4, size.gutter - 20];
    const name = element("text", { x: label[0], y: label[1], class: lane.select ? "name link" : "name" }, svg,
      short(lane.name, label[2]));
    if (lane.select) name.dataset.k = lane.select;
    element("title", {}, name, lane.about ? `${lane.name}: ${lane.about}` : lane.name);
    for (const bar of visible(lane)) drawBar(inner, bar, y + (bar.r || 0) * step, height, lane.kind);
    y += step * lane.rows + (lane.kind !== "node" ? GAP : size.narrow ? 3 : 1);
    if (lane.kind === "fault") below = y;
  }
  element("rect", { x: size.gutter, y: 0, width: plotWidth(), height: y }, clip);
  for (const ms of ticks().found) element("path", { d: `M${x(ms).toFixed(1)} 0V${y}`, class: "grid" }, under);
  shadeFaults(under, below, y);
  svg.setAttribute("height", y);
  holder.replaceChildren(svg);
}

function laneWords() {
  return `Lanes: ${data.lanes.map(lane => lane.name).join(", ")}. The tables below tell the same.`;
}

// Bars in view; of those narrower than a pixel that follow each other in a row, one.
function* visible(lane) {
  const ends = {};
  for (const bar of lane.bars) {
    const end = bar.e === null ? bar.b : bar.e;
    if (end < view.from || bar.b > view.to) continue;
    const key = `${bar.c} ${bar.r || 0}`;
    const right = x(end);
    if (right - x(bar.b) < 1 && right - (ends[key] ?? -9) < 1 && bar.k !== view.select) continue;
    ends[key] = right;
    yield bar;
  }
}

function drawBar(parent, bar, y, height, kind) {
  const left = x(bar.b);
  const faded = view.select && bar.k && bar.k !== view.select && /fault|edge|mark|planned/.test(bar.c) ? " faded" : "";
  let shape;
  if (bar.e === null && kind === "marks") {
    shape = element("path", { d: `M${left.toFixed(1)} ${y}l4.5 10h-9z`, class: bar.c + faded }, parent);
  } else if (bar.e === null) {
    shape = element("path", { d: `M${left.toFixed(1)} ${y + height}v-6`, class: bar.c }, parent);
  } else {
    shape = element("rect", { x: left.toFixed(2), rx: 2, class: `bar ${bar.c}${faded}`, ...extent(bar, y, height, left) }, parent);
    inscribe(parent, bar, left, y, height, faded);
  }
  shape.__bar = bar;
  if (bar.k) shape.dataset.k = bar.k;
}

function extent(bar, y, height, left) {
  const width = Math.max(1.2, x(bar.e) - left).toFixed(2);
  if (/^edge/.test(bar.c)) return { y: y + height / 2 - 3, height: 6, width };
  if (/^touched/.test(bar.c)) return { y: y + height, height: 3, width, rx: 0 };
  if (/^planned/.test(bar.c)) return { y: y + 0.5, height: height - 1, width };
  if (/^role (slave|follower|up)/.test(bar.c)) return { y: y + 4, height: height - 8, width };
  return { y, height, width };
}

function inscribe(parent, bar, left, y, height, faded) {
  const from = Math.max(left, size.gutter), to = Math.min(x(bar.e), size.gutter + plotWidth());
  const word = fitting(bar.w, to - from);
  if (!word) return;
  const style = STRONG.test(bar.c) ? "inner strong" : "inner weak";
  element("text", { x: (from + 4).toFixed(1), y: y + height / 2 + 4, class: style + faded }, parent, word);
}

function shadeFaults(parent, top, bottom) {
  const lane = data.lanes.find(one => one.kind === "fault");
  for (const bar of lane ? lane.bars : []) {
    if (!bar.c.startsWith("fault ")) continue;
    const picked = bar.k === view.select;
    const box = { x: x(bar.b).toFixed(2), y: top, height: Math.max(0, bottom - top), width: Math.max(1, x(bar.e) - x(bar.b)).toFixed(2) };
    element("rect", { ...box, class: picked ? "picked" : `shade ${bar.c.replace(/fault|doubtful/g, "").trim()}` }, parent);
  }
}

function drawAxis(holder) {
  const svg = element("svg", { width: size.width, height: 24 });
  const { step, found } = ticks();
  const places = digits(step);
  for (const ms of found) {
    const words = `${(ms / 1000).toFixed(places)} s`;
    const middle = Math.min(Math.max(x(ms), size.gutter + 10), size.width - words.length * 3 - 2);
    element("path", { d: `M${x(ms).toFixed(1)} 0v5`, class: "grid" }, svg);
    element("text", { x: middle.toFixed(1), y: 18, class: "tick", "text-anchor": "middle" }, svg, words);
  }
  $(holder).replaceChildren(svg);
}

// ---- the whole run in small

const OVERVIEW = 30;
const overviewX = ms => size.gutter + (ms - whole.from) / (whole.to - whole.from) * plotWidth();
const overviewAt = px => whole.from + (px - size.gutter) / plotWidth() * (whole.to - whole.from);

function drawOverview() {
  const svg = element("svg", { width: size.width, height: OVERVIEW + 6 });
  element("path", { d: miniature(), class: "mini" }, svg);
  for (const bar of data.lanes.flatMap(lane => lane.kind === "fault" ? lane.bars : [])) {
    if (!bar.c.startsWith("fault ")) continue;
    const width = Math.max(1, overviewX(bar.e) - overviewX(bar.b));
    element("rect", { x: overviewX(bar.b), y: 0, width, height: 4, class: `minifault ${bar.c.replace("fault", "").trim()}` }, svg);
  }
  element("path", { d: `M${size.gutter} ${OVERVIEW}h${plotWidth()}`, class: "grid" }, svg);
  const lens = element("rect", { x: overviewX(view.from), y: 1, rx: 3, height: OVERVIEW + 2, class: "lens",
    width: Math.max(3, overviewX(view.to) - overviewX(view.from)) }, svg);
  lens.style.display = isWhole() ? "none" : "";
  $("overview").replaceChildren(svg);
}

function miniature() {
  const columns = Math.floor(plotWidth() / 3);
  const sums = overall(columns);
  const top = Math.max(1, ...sums);
  const points = sums.map((n, i) => `L${(size.gutter + i * 3).toFixed(0)} ${(OVERVIEW - n / top * (OVERVIEW - 7)).toFixed(1)}h3`);
  return `M${size.gutter} ${OVERVIEW}${points.join("")}V${OVERVIEW}Z`;
}

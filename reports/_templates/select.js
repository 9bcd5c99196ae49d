// What is selected, and what belongs to it: a fault, a finding or a node filters everything else.

const AROUND_MS = 1000; // of a finding's moments
const MOST_ROWS = 300; // of the log, at first
let rowsShown = MOST_ROWS;

const faultOf = id => data.faults.find(fault => `fault-${fault.id}` === id);
const findingOf = id => id.startsWith("finding-") ? data.findings[+id.slice(8)] : undefined;
const nodeOf = id => id.startsWith("node-") ? id.slice(5) : undefined;
const exists = id => Boolean(faultOf(id) || findingOf(id) || (nodeOf(id) !== undefined && data.lanes.some(lane => lane.select === id)));

function selectedWords() {
  const fault = faultOf(view.select), finding = findingOf(view.select);
  if (fault) return `Fault ${fault.id}: ${fault.words}`;
  if (finding) return `Finding ${finding.code}`;
  return view.select ? `Node ${nodeOf(view.select)}` : "";
}

// The stretch of time that the selection speaks of; null when it has none.
function stretch() {
  const fault = faultOf(view.select), finding = findingOf(view.select);
  if (fault && fault.begin !== null) return [fault.begin, fault.end];
  if (finding && finding.times.length) return [finding.times[0] - AROUND_MS, finding.times[finding.times.length - 1] + AROUND_MS];
  return null;
}

function findingBelongs(number) {
  const finding = data.findings[number], fault = faultOf(view.select), node = nodeOf(view.select);
  if (fault) return finding.faults.includes(fault.id) || finding.times.some(ms => fault.begin !== null && ms >= fault.begin && ms <= fault.end);
  if (node !== undefined) return finding.nodes.includes(node) || finding.faults.some(id => (faultOf(`fault-${id}`) || { nodes: [] }).nodes.includes(node));
  return !view.select || view.select === `finding-${number}`;
}

function faultBelongs(id) {
  const finding = findingOf(view.select), node = nodeOf(view.select), fault = faultOf(`fault-${id}`);
  if (finding) return finding.faults.includes(id) || finding.times.some(ms => fault.begin !== null && ms >= fault.begin && ms <= fault.end);
  if (node !== undefined) return fault.nodes.includes(node);
  return !view.select || view.select === `fault-${id}`;
}

function filterPage() {
  let findings = 0, faults = 0;
  for (const article of document.querySelectorAll("[data-finding]")) {
    const belongs = findingBelongs(+article.dataset.finding);
    article.hidden = !belongs;
    article.classList.toggle("chosen", view.select === article.id);
    findings += belongs;
  }
  for (const row of document.querySelectorAll("[data-fault]")) {
    const belongs = faultBelongs(+row.dataset.fault);
    row.hidden = !belongs;
    row.classList.toggle("chosen", view.select === row.id);
    faults += belongs;
  }
  $("no-findings").hidden = Boolean(findings) || !data.findings.length;
  if ($("no-faults")) $("no-faults").hidden = Boolean(faults);
  $("selection").hidden = !view.select;
  $("selected").textContent = selectedWords();
  $("zoom-to").hidden = !stretch();
}

// ---- the log

function logRows() {
  const node = nodeOf(view.select), some = findingOf(view.select) || faultOf(view.select) ? stretch() : null;
  const words = view.search.toLowerCase();
  return data.log.filter(row =>
    (isWhole() || (row.t >= view.from && row.t <= view.to))
    && (!some || (row.t >= some[0] && row.t <= some[1]))
    && (node === undefined || row.n === node)
    && (!words || `${row.n} ${row.k} ${row.s}`.toLowerCase().includes(words)));
}

function cell(row, text, name) {
  const made = document.createElement("td");
  made.textContent = text;
  if (name) made.className = name;
  row.append(made);
}

function drawLog() {
  const shown = data.log.length > 0;
  $("log-frame").hidden = $("log-tools").hidden = !shown;
  $("no-log").hidden = shown;
  if (!shown) return;
  const rows = logRows();
  $("log-rows").replaceChildren(...rows.slice(0, rowsShown).map(one => {
    const row = document.createElement("tr");
    row.dataset.at = one.t;
    cell(row, (one.t / 1000).toFixed(3));
    cell(row, one.n || "–");
    cell(row, one.k);
    cell(row, one.s || "", "sentence");
    return row;
  }));
  const all = rows.length === data.log.length ? "" : ` of ${data.log.length.toLocaleString("en")}`;
  const thin = data.eventCount > data.log.length ? `, sampled from ${data.eventCount.toLocaleString("en")} in the run` : "";
  const cut = rows.length > rowsShown ? `; the first ${rowsShown} are shown, zoom in for more` : "";
  $("log-count").textContent = `${rows.length.toLocaleString("en")}${all} events in view${thin}${cut}`;
}

// ---- selecting

function select(id) {
  view.select = id && exists(id) ? id : "";
  say(view.select ? `Selected: ${selectedWords()}` : "Selection cleared.");
  refresh(true);
}

function nextFault(step) {
  const known = data.faults.filter(fault => fault.begin !== null).sort((a, b) => a.begin - b.begin);
  if (!known.length) return;
  const now = known.findIndex(fault => `fault-${fault.id}` === view.select);
  const next = now < 0 ? (step > 0 ? 0 : known.length - 1) : (now + step + known.length) % known.length;
  select(`fault-${known[next].id}`);
}

function zoomToSelection() {
  const some = stretch();
  if (!some) return;
  const margin = Math.max((some[1] - some[0]) * 0.2, 50);
  look(some[0] - margin, some[1] + margin);
  refresh(true);
}

let saying = 0;

function say(words) {
  clearTimeout(saying);
  saying = setTimeout(() => { $("said").textContent = words; }, 150);
}

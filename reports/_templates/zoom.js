"use strict";
(() => {
  const svg = document.querySelector("svg.timeline");
  if (!svg) return;
  const plot = svg.querySelector(".plot"), axis = svg.querySelector(".axis");
  const cursor = svg.querySelector(".cursor"), readout = document.querySelector(".readout");
  const lanes = JSON.parse(document.getElementById("lanes").textContent);
  const begin = +svg.dataset.from, end = +svg.dataset.end, gutter = +svg.dataset.gutter, width = +svg.dataset.plot;
  const height = plot.viewBox.baseVal.height, letter = 6.3, ns = svg.namespaceURI;
  let from = begin, to = end, dragged = null, band = null;

  const x = ms => gutter + (ms - from) / (to - from) * width;
  const at = event => {
    const box = svg.getBoundingClientRect();
    const here = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    return from + Math.min(1, Math.max(0, (here - gutter) / width)) * (to - from);
  };
  const nice = value => {
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map(step => step * power).find(step => step >= value * 0.999);
  };

  function draw() {
    plot.setAttribute("viewBox", `${from} 0 ${to - from} ${height}`);
    for (const text of svg.querySelectorAll("text.on")) {
      const left = Math.max(gutter, x(+text.dataset.from));
      const right = Math.min(gutter + width, x(+text.dataset.to));
      const words = JSON.parse(text.dataset.words);
      text.setAttribute("x", left + 4);
      text.textContent = words.find(word => word.length * letter <= right - left - 8) ?? "";
    }
    axis.replaceChildren();
    const step = nice((to - from) / 10);
    for (let ms = Math.ceil(from / step) * step; ms <= to; ms += step) {
      const tick = document.createElementNS(ns, "text");
      tick.setAttribute("class", "tick");
      tick.setAttribute("x", x(ms));
      tick.setAttribute("y", axis.dataset.y);
      tick.textContent = `${+(ms / 1000).toFixed(3)} s`;
      axis.append(tick);
    }
  }

  function tell(event) {
    const ms = at(event), bin = Math.floor((ms - lanes.from_ms) / lanes.bin_ms);
    const rate = name => Math.round((lanes[name][bin] ?? 0) / lanes.bin_ms * 1000);
    const lines = [`${(ms / 1000).toFixed(3)} s`];
    if (bin >= 0 && bin < lanes.ok.length) {
      lines.push(`acknowledged ${rate("ok")}/s`, `refused ${rate("fail")}/s`, `unknown ${rate("info")}/s`,
        `delivered ${rate("delivered")}/s`);
      if (lanes.p50_ms[bin] != null) lines.push(`p50 ${lanes.p50_ms[bin]} ms, p99 ${lanes.p99_ms[bin]} ms`);
    }
    readout.textContent = lines.join("\n");
    readout.hidden = false;
    const box = svg.getBoundingClientRect(), where = event.clientX - box.left;
    readout.style.left = `${where > box.width * 0.75 ? where - readout.offsetWidth - 12 : where + 16}px`;
    cursor.setAttribute("x1", x(ms));
    cursor.setAttribute("x2", x(ms));
    cursor.setAttribute("visibility", "visible");
  }

  plot.addEventListener("pointerdown", event => {
    dragged = at(event);
    plot.setPointerCapture(event.pointerId);
    band = document.createElementNS(ns, "rect");
    band.setAttribute("class", "selection");
    band.setAttribute("height", height);
    plot.append(band);
  });
  plot.addEventListener("pointermove", event => {
    tell(event);
    if (dragged === null) return;
    const here = at(event);
    band.setAttribute("x", Math.min(dragged, here));
    band.setAttribute("width", Math.abs(here - dragged));
  });
  plot.addEventListener("pointerup", event => {
    const here = at(event), low = Math.min(dragged, here), high = Math.max(dragged, here);
    dragged = null;
    band.remove();
    if (high - low > (to - from) / 200) [from, to] = [low, high];
    draw();
  });
  plot.addEventListener("pointerleave", () => {
    readout.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  });
  plot.addEventListener("dblclick", () => {
    [from, to] = [begin, end];
    draw();
  });
})();

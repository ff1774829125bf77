"use strict";
// Draws the curves of the page from its JSON block; all text goes in as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const NS = "http://www.w3.org/2000/svg";
const view = { log: false, smooth: 0, zoom: null };
const charts = [];
const DASHES = ["", "7 3", "2 3"];

function node(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
const style = (run) => ({ colour: `var(--s${run % 6})`, dash: DASHES[Math.floor(run / 6) % 3] });

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3).replace(/\.?0+e/, "e");
  return String(+value.toPrecision(5));
}

function ticks(low, high, most) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || 10 * power;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9 && found.length < 20; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

function logTicks(low, high) {
  const begin = Math.floor(low), end = Math.ceil(high), every = Math.max(1, Math.ceil((end - begin) / 5));
  const found = [];
  for (let p = begin; p <= end; p += every) for (const m of end - begin <= 2 ? [1, 2, 5] : [1]) {
    const at = p + Math.log10(m);
    if (at >= low - 1e-9 && at <= high + 1e-9) found.push(at);
  }
  return found.length > 1 ? found : [low, high];
}

// An exponential mean that begins unbiased. It is drawn over the raw line, never instead of it.
function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

function bounds(chart) {
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const s of chart.series) for (let i = 0; i < s.x.length; i++) { x0 = Math.min(x0, s.x[i]); x1 = Math.max(x1, s.x[i], s.last); }
  for (const s of chart.series) for (const o of s.odd) { x0 = Math.min(x0, o[0]); x1 = Math.max(x1, o[0]); }
  if (view.zoom) [x0, x1] = view.zoom;
  for (const s of chart.series) for (let i = 0; i < s.x.length; i++) {
    if (s.x[i] < x0 || s.x[i] > x1 || s.mean[i] === null) continue;
    for (const value of s.lo ? [s.lo[i], s.hi[i]] : [s.mean[i]]) {
      if (view.log && value <= 0) continue;
      const y = view.log ? Math.log10(value) : value;
      y0 = Math.min(y0, y); y1 = Math.max(y1, y);
    }
  }
  if (x0 === Infinity) { x0 = 0; x1 = 1; }
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  const empty = y0 === Infinity;
  if (empty) { y0 = 0; y1 = 1; }
  if (y0 === y1) { const gap = Math.abs(y0) * 0.05 || 1; y0 -= gap; y1 += gap; }
  const room = (y1 - y0) * 0.05;
  return { x0, x1, y0: y0 - room, y1: y1 + room, empty };
}

function draw(chart) {
  const svg = chart.svg, width = Math.max(200, svg.clientWidth || 420), height = 230;
  const left = 58, right = 10, top = 14, bottom = 24, b = bounds(chart);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const X = (x) => left + ((x - b.x0) / (b.x1 - b.x0)) * (width - left - right);
  const Y = (y) => top + (1 - (y - b.y0) / (b.y1 - b.y0)) * (height - top - bottom);
  const V = (value) => Y(view.log ? Math.log10(value) : value);
  const ok = (value) => value !== null && (!view.log || value > 0);
  Object.assign(chart, { X, Y, b, left, width, right, height });
  for (const t of view.log ? logTicks(b.y0, b.y1) : ticks(b.y0, b.y1, 5)) {
    svg.append(node("line", { class: "axis", x1: left, x2: width - right, y1: Y(t), y2: Y(t) }));
    svg.append(node("text", { x: left - 6, y: Y(t) + 4, "text-anchor": "end" }, short(view.log ? 10 ** t : t)));
  }
  for (const t of ticks(b.x0, b.x1, Math.max(2, Math.floor(width / 90))))
    svg.append(node("text", { x: Math.min(X(t), width - right - 14), y: height - 6, "text-anchor": "middle" }, short(t)));
  const inside = (x) => x >= b.x0 && x <= b.x1;
  for (const run of new Set(chart.series.map((s) => s.run))) {
    for (const at of data.runs[run].restarts) if (inside(at)) {
      const line = node("line", { class: "restart", x1: X(at), x2: X(at), y1: top, y2: height - bottom });
      line.append(node("title", {}, `${data.runs[run].name}: restarted from step ${at}`)); svg.append(line);
    }
    for (const at of data.runs[run].saved) if (inside(at)) {
      const line = node("line", { class: "saved", x1: X(at), x2: X(at), y1: height - bottom, y2: height - bottom + 6 });
      line.append(node("title", {}, `${data.runs[run].name}: checkpoint of step ${at}`)); svg.append(line);
    }
  }
  const clip = `clip${chart.id}`, defs = node("clipPath", { id: clip });
  defs.append(node("rect", { x: left, y: 0, width: width - left - right, height: height - bottom + 1 }));
  svg.append(defs);
  const plot = node("g", { "clip-path": `url(#${clip})` });
  svg.append(plot);
  for (const s of chart.series) {
    const { colour, dash } = style(s.run);
    const path = (values) => {
      let d = "", pen = false, alone = 0;
      values.forEach((value, i) => {
        if (!ok(value)) { if (alone === 1) d += "h.01"; pen = false; alone = 0; return; }
        d += `${pen ? "L" : "M"}${X(s.x[i]).toFixed(1)} ${V(value).toFixed(1)}`; alone++; pen = true;
      });
      return alone === 1 ? d + "h.01" : d;
    };
    if (s.lo) {
      // a low end that a log scale cannot show goes down to the axis
      const up = s.x.map((x, i) => (ok(s.hi[i]) ? `${X(x).toFixed(1)} ${V(s.hi[i]).toFixed(1)}` : null)).filter(Boolean);
      const down = s.x.map((x, i) => (ok(s.hi[i]) ? `${X(x).toFixed(1)} ${(ok(s.lo[i]) ? V(s.lo[i]) : Y(b.y0)).toFixed(1)}` : null)).filter(Boolean).reverse();
      if (up.length) plot.append(node("path", { class: "range", d: `M${up.concat(down).join("L")}Z`, fill: colour }));
    }
    const thick = { "stroke-linecap": "round", "stroke-dasharray": dash, stroke: colour };
    plot.append(node("path", { class: view.smooth ? "raw" : "raw only", d: path(s.mean), ...thick }));
    if (view.smooth) plot.append(node("path", { class: "smooth", d: path(smoothed(s.mean, view.smooth)), ...thick }));
    for (const [step, kind] of s.odd) if (inside(step)) {
      const mark = node("path", { class: "oddmark", d: `M${X(step) - 5} 1h10l-5 9z` });
      mark.append(node("title", {}, `${data.runs[s.run].name}: ${kind} at step ${step}`)); svg.append(mark);
    }
  }
  if (b.empty) svg.append(node("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, view.log ? "no positive value to show on a log scale" : "no finite value"));
  chart.cursor = node("line", { class: "cursor", y1: top, y2: height - bottom, x1: -9, x2: -9 });
  chart.pick = node("rect", { class: "pick", y: top, height: height - bottom - top, x: -9, width: 0 });
  svg.append(chart.cursor, chart.pick);
}

function nearest(s, x) {
  let a = 0, z = s.x.length - 1;
  while (z - a > 1) { const mid = (a + z) >> 1; if (s.x[mid] <= x) a = mid; else z = mid; }
  return s.lo ? (s.x[z] <= x ? z : a) : Math.abs(s.x[z] - x) < Math.abs(s.x[a] - x) ? z : a;
}

function point(chart, x) {
  chart.at = x;
  chart.cursor.setAttribute("x1", chart.X(x)); chart.cursor.setAttribute("x2", chart.X(x));
  const words = [];
  for (const s of chart.series) if (s.x.length) {
    const i = nearest(s, x), end = i + 1 < s.x.length ? s.x[i + 1] - 1 : s.last;
    const name = data.runs.length > 1 ? `${data.runs[s.run].name}, ` : "";
    let text = s.lo && end > s.x[i]
      ? `${name}steps ${s.x[i]}–${end}: mean ${short(s.mean[i])}, ${short(s.lo[i])} to ${short(s.hi[i])}`
      : `${name}step ${s.x[i]}: ${s.mean[i] === null ? "not finite" : short(s.mean[i])}`;
    if (view.smooth) text += ` (smoothed ${short(smoothed(s.mean, view.smooth)[i])})`;
    words.push(text);
  }
  chart.readout.textContent = words.join(" · ");
}

function redraw() { for (const chart of charts) draw(chart); document.getElementById("unzoom").hidden = !view.zoom; }
function zoomTo(a, z) { view.zoom = a === null ? null : [Math.min(a, z), Math.max(a, z)]; redraw(); }

function listen(chart) {
  const svg = chart.svg;
  const stepAt = (event) => {
    const share = (event.clientX - svg.getBoundingClientRect().left - chart.left) / (chart.width - chart.left - chart.right);
    return chart.b.x0 + Math.min(1, Math.max(0, share)) * (chart.b.x1 - chart.b.x0);
  };
  let begun = null;
  svg.addEventListener("pointerdown", (event) => { if (event.button === 0) { begun = stepAt(event); svg.setPointerCapture(event.pointerId); } });
  svg.addEventListener("pointermove", (event) => {
    const x = stepAt(event);
    point(chart, x);
    if (begun === null) return;
    const [a, z] = [chart.X(Math.min(begun, x)), chart.X(Math.max(begun, x))];
    chart.pick.setAttribute("x", a); chart.pick.setAttribute("width", z - a);
  });
  svg.addEventListener("pointerup", (event) => {
    const x = stepAt(event), wide = begun !== null && Math.abs(chart.X(x) - chart.X(begun)) > 6;
    const from = begun; begun = null;
    if (wide) zoomTo(from, x); else chart.pick.setAttribute("width", 0);
  });
  svg.addEventListener("pointercancel", () => { begun = null; chart.pick.setAttribute("width", 0); });
  svg.addEventListener("dblclick", () => zoomTo(null));
  svg.addEventListener("keydown", (event) => {
    const span = chart.b.x1 - chart.b.x0, at = chart.at === undefined ? (chart.b.x0 + chart.b.x1) / 2 : chart.at;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) point(chart, Math.min(chart.b.x1, Math.max(chart.b.x0, at + (move * span) / (event.shiftKey ? 10 : 100))));
    else if (event.key === "+" || event.key === "=") zoomTo(at - span / 4, at + span / 4);
    else if (event.key === "-" || event.key === "0" || event.key === "Escape") zoomTo(null);
    else return;
    event.preventDefault();
  });
}

function theme() {
  const button = document.getElementById("theme"), root = document.documentElement;
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const say = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; say(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
  say();
}

for (const figure of document.querySelectorAll("figure.chart")) {
  const found = data.charts[+figure.dataset.chart];
  const chart = { ...found, id: +figure.dataset.chart, svg: figure.querySelector("svg"), readout: figure.querySelector(".readout") };
  charts.push(chart); draw(chart); listen(chart);
  // a chart that is drawn at another width than it has would be stretched
  new ResizeObserver(() => { if (chart.width !== Math.max(200, chart.svg.clientWidth)) draw(chart); }).observe(chart.svg);
}
document.querySelectorAll(".key [data-run]").forEach((svg) => {
  const { colour, dash } = style(+svg.dataset.run);
  svg.append(node("path", { d: "M0 5h26", stroke: colour, "stroke-width": 3, "stroke-dasharray": dash }));
});
const log = document.getElementById("log"), smooth = document.getElementById("smooth");
if (log) {
  log.addEventListener("click", () => { view.log = !view.log; log.setAttribute("aria-pressed", view.log); redraw(); });
  smooth.addEventListener("input", () => {
    view.smooth = +smooth.value / 100;
    document.getElementById("smoothed").textContent = view.smooth ? view.smooth.toFixed(2) : "off";
    redraw();
  });
  document.getElementById("unzoom").addEventListener("click", () => zoomTo(null));
}
document.documentElement.addEventListener("keydown", (event) => { if (event.key === "Escape" && view.zoom) zoomTo(null); });
addEventListener("beforeprint", redraw);
theme();

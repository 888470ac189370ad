// The chart of a job's metrics: chips choose metrics, a zoom loads finer points, smoothing and the log axis are drawn here.
import { colour, interaction, library, paint, timeaxis, zooming } from "./charts.js";
import { $, $$, getJson, translate } from "./dom.js";
import { theme } from "./theme.js";

const PACE_MS = 1000;
const ZOOM_MS = 250;
const POINTS = 1000;
const MOST_ROWS = 200;
const MOST_NAMES = 16;
const MERGE_PX = 60;
const LANE_PX = 190;
const RAW_OPACITY = 0.45;
const SUPERSEDED_OPACITY = 0.35;
const BAND_OPACITY = 0.16;
const SILENT = { hoverinfo: "none", hovertemplate: "" };
const SMOOTHING_KEY = "tessera-smoothing";
// Checkpoints have an axis of their own, whose zero is the foot of the lowest lane.
const FOOT_AXIS = "y20";
// The first of the axes for crosses, one above each lane.
const FIRST_CROSS = 30;
const foot = (lane) => ({ overlaying: lane > 0 ? `y${lane + 1}` : "y", range: [0, 1], visible: false, fixedrange: true });
const NARROW = matchMedia("(max-width: 720px)");

// Bias-corrected exponential mean; it restarts at a gap.
export function smooth(values, factor) {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) { mean = 0; weight = 0; return null; }
    mean = factor * mean + (1 - factor) * value;
    weight = factor * weight + (1 - factor);
    return Number((mean / weight).toPrecision(6));
  });
}

// The colour of a line, for the area of its range.
function faint(value) {
  const parts = /^rgb\((.*)\)$/.exec(value ?? "");
  return parts ? `rgba(${parts[1]}, ${BAND_OPACITY})` : undefined;
}

export class Metrics {
  constructor(box) {
    this.box = box;
    this.plot = $(".plot", box);
    this.figure = JSON.parse($('script[type="application/json"]', box).textContent);
    this.shown = new Set(box.dataset.shown.split(",").filter(Boolean));
    this.x = this.figure.x;
    this.range = null;
    this.waiting = null;
    this.factor = Number(localStorage.getItem(SMOOTHING_KEY) ?? 0.6);
    this.isLog = false;
    this.ranks = "";
    this.connect();
  }

  connect() {
    const { box } = this;
    const slider = $("[data-metrics-smooth]", box);
    slider.value = this.factor;
    $("output", box).value = this.factor;
    slider.addEventListener("input", () => {
      this.factor = Number(slider.value);
      $("output", box).value = this.factor;
      localStorage.setItem(SMOOTHING_KEY, this.factor);
      this.draw();
    });
    box.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if (button.dataset.metric) this.toggle(button);
      else if (button.dataset.metricsX) this.axis(button);
      else if ("metricsLog" in button.dataset) { this.isLog = !this.isLog; button.setAttribute("aria-pressed", this.isLog); this.draw(); }
      else if ("metricsReset" in button.dataset || "metricsFollow" in button.dataset) this.zoom(null);
      else if ("metricsTable" in button.dataset) this.table(button);
    });
    $("[data-metrics-ranks]", box)?.addEventListener("change", (event) => { this.ranks = event.target.value; this.press(); this.fetch(); });
    box.addEventListener("dblclick", (event) => {
      const name = event.target.closest("[data-metric]")?.dataset.metric;
      if (name) { this.shown = new Set([name]); this.press(); this.fetch(); }
    });
    // Where the reader has zoomed, the chart does not move.
    box.addEventListener("tessera:update", () => { if (!this.range) this.waiting ??= setTimeout(() => this.fetch(), PACE_MS); });
    document.addEventListener("tessera-theme", () => this.draw());
    NARROW.addEventListener("change", () => this.draw());
    this.press();
    new IntersectionObserver((seen, observer) => {
      if (seen.some((entry) => entry.isIntersecting)) { observer.disconnect(); this.draw(); }
    }, { rootMargin: "200px" }).observe(box);
  }

  toggle(button) {
    const name = button.dataset.metric;
    if (this.shown.has(name)) { if (this.shown.size > 1) this.shown.delete(name); } else if (this.shown.size < MOST_NAMES) this.shown.add(name);
    this.press();
    this.fetch();
  }

  axis(button) {
    this.x = button.dataset.metricsX;
    this.range = null;
    $$("[data-metrics-x]", this.box).forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    this.fetch();
  }

  press() {
    const chips = $(".chips", this.box);
    const known = new Set($$("[data-metric]", chips).map((chip) => chip.dataset.metric));
    (this.figure.names ?? []).filter((name) => !known.has(name)).forEach((name) => {
      const chip = Object.assign(document.createElement("button"), { type: "button", className: "chip" });
      chip.dataset.metric = name;
      chip.append(Object.assign(document.createElement("i"), { className: "ln" }), name);
      chips.append(chip);
    });
    $$("[data-metric]", chips).forEach((chip) => {
      chip.setAttribute("aria-pressed", String(this.shown.has(chip.dataset.metric)));
      const place = (this.figure.names ?? []).indexOf(chip.dataset.metric);
      $(".ln", chip).className = `ln c${(Math.max(0, place) % 8) + 1}`;
    });
    const csv = $("[data-metrics-csv]", this.box);
    csv.href = `${this.box.dataset.url}?${this.query(10000)}&format=csv`;
  }

  query(points) {
    const query = new URLSearchParams({ name: [...this.shown].join(","), x: this.x, points });
    if (this.ranks === "mean" || this.ranks === "all") query.set("ranks", "all");
    else if (this.ranks) query.set("rank", this.ranks);
    if (this.ranks === "mean") query.set("mean", "1");
    if (this.range) { query.set("since", this.range[0]); query.set("until", this.range[1]); }
    return query;
  }

  zoom(range) {
    this.range = range;
    $("[data-metrics-follow]", this.box).hidden = !range;
    this.press();
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.fetch(), range ? ZOOM_MS : 0);
  }

  async fetch() {
    this.waiting = null;
    // The newest query wins, also if an older answer comes later.
    const asked = this.asked = {};
    try {
      const figure = await getJson(`${this.box.dataset.url}?${this.query(POINTS)}`);
      if (this.asked !== asked) return;
      this.figure = figure;
      this.press();
      await this.draw();
    } catch (error) {
      console.warn("metrics", error);
      $("[data-metrics-state]", this.box).textContent = translate("Metrics could not be loaded.");
    }
  }

  async draw() {
    const { design, Plotly } = await library();
    $(".waits", this.plot)?.remove();
    const values = this.figure.data.flatMap((trace) => trace.y).filter((value) => value !== null);
    const canLog = values.every((value) => value > 0);
    const button = $("[data-metrics-log]", this.box);
    button.disabled = !canLog;
    button.title = canLog ? "" : translate("Not all values are positive.");
    const lanes = Math.max(1, this.figure.layout.lanes ?? 1);
    this.plot.dataset.lanes = Math.min(lanes, 8);
    const data = this.figure.data.flatMap((trace) => this.lines(trace));
    const { shapes, annotations, triangles, crosses } = this.marks();
    const times = this.x === "time" ? timeaxis(design) : {};
    const { lanes: _count, ...given } = this.figure.layout;
    const axes = Object.fromEntries(Object.entries(given).filter(([name]) => name.startsWith("yaxis")).map(([name, axis]) => [name, { ...axis, fixedrange: false, automargin: true, type: this.isLog && canLog ? "log" : "linear", title: { ...axis.title, standoff: 4 } }]));
    const layout = {
      ...axes,
      ...(triangles.length ? { yaxis20: foot(lanes - 1) } : {}),
      ...Object.fromEntries(crosses.map((trace) => [`yaxis${trace.yaxis.slice(1)}`, foot(trace.yaxis.slice(1) - FIRST_CROSS)])),
      xaxis: { ...times, ...given.xaxis, fixedrange: false, ...(this.range ? { range: this.range.map((value) => this.shownX(value)), autorange: false } : { autorange: true }) },
      template: design[theme()],
      autosize: true,
      showlegend: false,
      ...zooming(),
      hovermode: "x unified",
      hoversubplots: "axis",
      margin: { l: 56, r: NARROW.matches ? 12 : 44, t: annotations.length ? 34 : 10, b: 40 },
      height: lanes > 1 ? (lanes + 1) * (LANE_PX - 50) : 2 * LANE_PX - 40,
      shapes,
      annotations,
      uirevision: `${this.x} ${this.range ? "zoomed" : "whole"}`,
    };
    const config = interaction(design, "metrics");
    await Plotly.react(this.plot, [...data, ...triangles, ...crosses], layout, config);
    if (!this.isListening) {
      this.isListening = true;
      this.plot.on("plotly_relayout", (change) => this.moved(change));
    }
    if (this.box.dataset.view === "table") this.fill();
  }

  lines(trace) {
    const painted = paint(trace);
    const { metric: _metric, superseded, band, ...base } = painted;
    if (band === "low" || band === "high") return [{ ...base, ...SILENT, line: { ...base.line, width: 0 }, ...(band === "high" ? { fill: "tonexty", fillcolor: faint(base.line?.color) } : {}) }];
    const hover = { hovertemplate: "%{y:.5~g}<extra>%{fullData.name}</extra>" };
    if (superseded) return [{ ...base, opacity: SUPERSEDED_OPACITY, line: { ...base.line, width: 1 }, ...SILENT }];
    if (!this.factor || trace.y.length < 3) return [{ ...base, ...hover, mode: trace.y.length < 60 ? "lines+markers" : "lines", marker: { ...base.marker, size: 4 }, line: { ...base.line, width: 1.75 } }];
    const smoothed = { ...base, ...hover, y: smooth(trace.y, this.factor), name: `${trace.name} (${translate("smoothed")})`, line: { ...base.line, width: 1.75 } };
    return [{ ...base, opacity: RAW_OPACITY, line: { ...base.line, width: 1 }, ...SILENT }, smoothed];
  }

  // Dashed lines with two lines of text; labels near each other are merged.
  marks() {
    const value = colour("text-3");
    const strong = colour("text");
    const lines = (this.figure.marks ?? []).filter((mark) => mark.line);
    const shapes = lines.map(({ x }) => ({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, layer: "below", line: { color: value, width: 1, dash: "dash" } }));
    // Two annotations instead of markup in one: markup sets inline styles, which the policy of the page refuses.
    const label = (x, text, yshift, weight) => ({ x, y: 1, xref: "x", yref: "paper", yanchor: "bottom", xanchor: "center", xshift: 0, yshift, showarrow: false, text, font: { size: 11, weight, color: weight > 400 ? strong : value } });
    const annotations = NARROW.matches ? [] : this.merged(lines).flatMap(({ x, text, detail }) => [label(x, text, detail ? 13 : 0, 600), ...(detail ? [label(x, detail, 0, 400)] : [])]);
    const saved = (this.figure.marks ?? []).filter((mark) => !mark.line);
    const looks = { hovertemplate: "%{fullData.name}<extra></extra>", marker: { symbol: "triangle-up-open", size: 8, color: strong }, cliponaxis: false };
    const triangles = saved.length ? [{ type: "scatter", mode: "markers", x: saved.map((mark) => mark.x), y: saved.map(() => 0), xaxis: "x", yaxis: FOOT_AXIS, name: saved[0].text, ...looks }] : [];
    const broken = this.figure.broken ?? [];
    const crosses = [...new Set(broken.map((mark) => mark.lane))].map((lane) => {
      const own = broken.filter((mark) => mark.lane === lane);
      return { type: "scatter", mode: "markers", x: own.map((mark) => mark.x), y: own.map(() => 0.03), xaxis: "x", yaxis: `y${FIRST_CROSS + lane}`, text: own.map((mark) => mark.text), hovertemplate: "%{text}<extra></extra>", marker: { symbol: "x-thin-open", size: 9, color: colour("bad") }, cliponaxis: false };
    });
    return { shapes, annotations, triangles, crosses };
  }

  merged(lines) {
    const xs = this.figure.data.flatMap((trace) => trace.x).filter((x) => x !== null).map((x) => this.number(x));
    const low = xs.reduce((least, x) => Math.min(least, x), Infinity);
    const high = xs.reduce((most, x) => Math.max(most, x), -Infinity);
    const scale = (this.plot.clientWidth - 100) / Math.max(1e-9, high - low);
    const found = [];
    for (const mark of lines) {
      const last = found.at(-1);
      if (last && (this.number(mark.x) - this.number(last.x)) * scale < MERGE_PX) Object.assign(last, { count: last.count + 1, text: translate("{number} events", { number: last.count + 1 }), detail: "" });
      else found.push({ ...mark, count: 1 });
    }
    return found;
  }

  number(x) { return typeof x === "string" ? Date.parse(`${x}Z`) / 1000 : x; }

  // Times of the chart are in the zone of the page, and those of queries in Unix seconds.
  shownX(value) { return this.x === "time" ? this.shownTimes?.get(value) ?? value : value; }

  moved(change) {
    if (change["xaxis.autorange"]) { if (this.range) this.zoom(null); return; }
    const since = change["xaxis.range[0]"];
    const until = change["xaxis.range[1]"];
    if (since === undefined || until === undefined) return;
    if (this.x !== "time") { this.zoom([since, until]); return; }
    const offset = this.figure.zone_seconds ?? 0;
    const range = [since, until].map((text) => Date.parse(`${String(text).replace(" ", "T")}Z`) / 1000 - offset);
    this.shownTimes = new Map([[range[0], since], [range[1], until]]);
    this.zoom(range);
  }

  table(button) {
    const on = this.box.dataset.view !== "table";
    this.box.dataset.view = on ? "table" : "plot";
    button.setAttribute("aria-pressed", String(on));
    if (on) this.fill(); else this.draw();
  }

  // The newest rows; a metric without a value at a row has a dash.
  fill() {
    const traces = this.figure.data;
    const rows = new Map();
    traces.forEach((trace, column) => trace.x.forEach((x, place) => {
      if (x === null || trace.y[place] === null) return;
      if (!rows.has(x)) rows.set(x, []);
      rows.get(x)[column] = trace.y[place];
    }));
    const table = Object.assign(document.createElement("table"), { className: "tight" });
    const cell = (row, tag, text, numeric) => row.append(Object.assign(document.createElement(tag), { textContent: text, className: numeric ? "num" : "" }));
    const head = table.createTHead().insertRow();
    cell(head, "th", translate({ step: "Step", time: "Time", epoch: "Epoch", hours: "Hours", "device-hours": "Device-hours" }[this.x]), false);
    traces.forEach((trace) => cell(head, "th", trace.name, true));
    const body = table.createTBody();
    const newest = [...rows.keys()].sort((a, b) => this.number(b) - this.number(a)).slice(0, MOST_ROWS);
    newest.forEach((x) => {
      const row = body.insertRow();
      cell(row, "td", typeof x === "number" ? x.toLocaleString() : String(x).replace("T", " ").slice(0, 23), false);
      traces.forEach((_trace, column) => cell(row, "td", rows.get(x)[column]?.toLocaleString(undefined, { maximumSignificantDigits: 6 }) ?? "–", true));
    });
    $(".twin", this.box).replaceChildren(table);
  }
}

export function startMetrics(box) {
  if (box.dataset.started) return;
  box.dataset.started = "yes";
  new Metrics(box);
}

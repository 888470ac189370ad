// Zoom of a chart: chips for its lines, reset, log axis, and a range that linked charts and the address share.
import { $, $$, translate } from "./dom.js";

const LINKED = new Map();

const instant = (text) => Date.parse(`${String(text).replace(" ", "T")}Z`);

export class Zoom {
  constructor(chart, redraw) {
    Object.assign(this, { chart, redraw, hidden: new Set(), isLog: false, range: null, whole: null, figure: null, plot: null, isMoving: false });
    this.file = $("[data-chart-csv]", chart);
    this.fileUrl = this.file.href;
    if (chart.dataset.link) {
      const group = LINKED.get(chart.dataset.link) ?? new Set();
      LINKED.set(chart.dataset.link, group.add(this));
      const query = new URLSearchParams(location.search);
      if (instant(query.get("from")) < instant(query.get("to"))) this.keep([query.get("from"), query.get("to")]);
    }
    $("[data-chart-reset]", chart).addEventListener("click", () => this.zoom(null));
    $("[data-chart-log]", chart).addEventListener("click", () => { this.isLog = !this.isLog; this.redraw(); });
    $(".chips", chart).addEventListener("click", (event) => this.toggle(event));
    $(".chips", chart).addEventListener("dblclick", (event) => this.alone(event));
  }

  // Returns the traces and the layout with the state of the controls.
  apply(figure, data, look) {
    this.figure = figure;
    // A copy, since Plotly writes the visible range into the layout that it gets.
    this.whole ??= figure.layout.xaxis?.range ? [...figure.layout.xaxis.range] : null;
    this.offerLog(data);
    this.press(data);
    const axes = Object.entries(look).filter(([name]) => name.startsWith("yaxis") || name === "yaxis").map(([name, axis]) => [name, { ...axis, automargin: true, fixedrange: axis.type === "category", ...(this.isLog && name === "yaxis" ? { type: "log" } : {}) }]);
    return {
      data: data.map((trace) => ({ ...trace, visible: !this.hidden.has(trace.name), showlegend: false })),
      layout: {
        yaxis: { fixedrange: false, automargin: true },
        ...look,
        ...Object.fromEntries(axes),
        annotations: [],
        showlegend: false,
        margin: { ...look.margin, r: 44 },
        xaxis: { ...look.xaxis, fixedrange: look.xaxis.type === "category", ...(this.range && this.plot ? { range: [...this.range], autorange: false } : this.whole ? { range: [...this.whole], autorange: false } : {}) },
      },
    };
  }

  // The first drawing has the whole range, to which a double click returns.
  drawn(plot) {
    if (this.plot) return;
    this.plot = plot;
    plot.on("plotly_relayout", (change) => this.moved(change));
    if (this.range) this.show();
  }

  moved(change) {
    if (this.isMoving) return;
    const given = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (change["xaxis.autorange"]) this.zoom(null);
    else if (given[0] !== undefined) this.zoom(this.isWhole(given) ? null : given.map(String));
  }

  isWhole(range) {
    return Boolean(this.whole) && range.every((text, end) => Math.abs(instant(text) - instant(this.whole[end])) < 1000);
  }

  zoom(range) {
    const { link } = this.chart.dataset;
    const group = link ? LINKED.get(link) : new Set([this]);
    group.forEach((one) => { one.keep(range); one.show(); });
    if (!link) return;
    const url = new URL(location.href);
    ["from", "to"].forEach((name, end) => (range ? url.searchParams.set(name, range[end].replace(" ", "T").slice(0, 19)) : url.searchParams.delete(name)));
    history.replaceState(history.state, "", url);
  }

  keep(range) {
    this.range = range;
    const url = new URL(this.fileUrl);
    const zone = this.figure?.zone_seconds ?? 0;
    ["since", "until"].forEach((name, end) => { if (range) url.searchParams.set(name, new Date(instant(range[end]) - 1000 * zone).toISOString()); });
    this.file.href = url.href;
  }

  async show() {
    if (!this.plot) return;
    const whole = this.whole ? { "xaxis.range": [...this.whole] } : { "xaxis.autorange": true };
    this.isMoving = true;
    try {
      await window.Plotly.relayout(this.plot, this.range ? { "xaxis.range": [...this.range] } : { ...whole, "yaxis.autorange": this.figure.layout.yaxis?.autorange ?? true });
    } finally { this.isMoving = false; }
  }

  offerLog(data) {
    const button = $("[data-chart-log]", this.chart);
    button.hidden = !this.figure.log;
    const canLog = data.filter((trace) => !trace.yaxis || trace.yaxis === "y").every((trace) => (trace.y ?? []).every((value) => value === null || value > 0));
    this.isLog &&= canLog;
    button.disabled = !canLog;
    button.title = canLog ? "" : translate("Not all values are positive.");
    button.setAttribute("aria-pressed", String(this.isLog));
  }

  press(data) {
    const chips = $(".chips", this.chart);
    const named = this.figure.data.filter((trace) => trace.name);
    if (chips.childElementCount !== named.length) {
      chips.replaceChildren(...named.map((trace) => {
        const chip = Object.assign(document.createElement("button"), { type: "button", className: "chip", title: translate("Double-click shows this line alone") });
        chip.dataset.line = trace.name;
        const dash = trace.line?.dash ?? "solid";
        const mark = Object.assign(document.createElement("span"), { className: dash });
        mark.append(Object.assign(document.createElement("i"), { className: `ln ${trace.colour}` }));
        chip.append(mark, trace.name);
        return chip;
      }));
    }
    chips.hidden = data.filter((trace) => trace.name).length < (this.figure.keyed ? 1 : 2);
    $$("[data-line]", chips).forEach((chip) => chip.setAttribute("aria-pressed", String(!this.hidden.has(chip.dataset.line))));
  }

  toggle(event) {
    const name = event.target.closest("[data-line]")?.dataset.line;
    if (!name) return;
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.redraw();
  }

  alone(event) {
    const name = event.target.closest("[data-line]")?.dataset.line;
    if (!name) return;
    this.hidden = new Set(this.figure.data.map((trace) => trace.name).filter((each) => each && each !== name));
    this.redraw();
  }
}

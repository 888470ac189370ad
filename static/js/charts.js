// Plotly charts, loaded after the first paint and only on pages with charts. The figure is JSON next to the chart. A trace's
// `colour` names a design token, so it follows the theme. Line ends have labels. A table shows the same values.
import { $, $$, getJson, translate } from "./dom.js";
import { theme } from "./theme.js";
import { Zoom } from "./zoom.js";

const PACE_MS = 1000;
const MOST_LABELS = 4;
// On narrow pages, a legend below the chart names the lines, because there is no space beside them.
const NARROW = matchMedia("(max-width: 720px)");
let loading = null;

function addStylesheet() {
  const link = document.createElement("link");
  Object.assign(link, { rel: "stylesheet", id: "plotly.js-style-global", className: "no-inline-styles", href: document.body.dataset.plotlyCss });
  const done = new Promise((resolve, reject) => { link.onload = resolve; link.onerror = reject; });
  document.head.append(link);
  return done;
}

function addScript() {
  const script = Object.assign(document.createElement("script"), { src: document.body.dataset.plotly, async: true });
  const done = new Promise((resolve, reject) => { script.onload = resolve; script.onerror = reject; });
  document.head.append(script);
  return done;
}

export function library() {
  loading ??= new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve)); })
    .then(() => Promise.all([getJson(document.body.dataset.plotlyTemplate), addStylesheet().then(addScript)]))
    .then(([design]) => ({ design, Plotly: window.Plotly }));
  loading.catch(() => { loading = null; });
  return loading;
}

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A token may contain light-dark(); the computed colour of an element resolves it.
export function colour(name) {
  const probe = document.createElement("span");
  probe.className = "sr";
  probe.style.color = token(name) || "";
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

// The mode bar lies in the right margin; all charts that zoom have the same one.
export const interaction = (design, filename) => ({ ...design.config, displayModeBar: NARROW.matches ? false : "hover", doubleClick: "reset", displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"], ["toImage"]], toImageButtonOptions: { format: "png", scale: 2, filename } });

export function zooming() {
  const surface = colour("surface");
  return { dragmode: NARROW.matches ? false : "zoom", paper_bgcolor: surface, plot_bgcolor: surface, modebar: { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: colour("text-3"), activecolor: colour("text") } };
}

export function paint(trace) {
  const { colour: name, colours, ...rest } = trace;
  if (colours) return { ...rest, colorscale: colours.map((each, place) => [place / (colours.length - 1), colour(each)]) };
  if (!name) return rest;
  const value = colour(name);
  const marker = { ...rest.marker, color: value };
  return rest.type === "bar" ? { ...rest, marker } : { ...rest, marker, line: { ...rest.line, color: value } };
}

const isNamedLine = (trace) => !["bar", "heatmap"].includes(trace.type) && trace.mode !== "markers" && trace.name;

function ends(traces, figure) {
  const lines = traces.filter(isNamedLine);
  if (!lines.length || lines.length > MOST_LABELS) return [];
  const labels = lines.map((trace) => {
    const last = trace.y.findLastIndex((value) => value !== null);
    return last < 0 ? null : { x: within(placed(trace.x[last], figure.layout?.xaxis), figure.layout?.xaxis), y: placed(trace.y[last], figure.layout?.yaxis), text: trace.name, xanchor: "left", yanchor: "middle", showarrow: false, xshift: 5, bgcolor: colour("surface"), font: { color: trace.line?.color } };
  }).filter(Boolean);
  return spread(labels, figure.layout?.yaxis ?? {}, lines);
}

// Events: a labelled triangle on the axis, and a dashed line through the chart for events that changed something.
function marked({ marks = [] }) {
  if (!marks.length) return { traces: [], shapes: [] };
  const value = colour("text-3");
  const points = { type: "scatter", mode: "markers", x: marks.map((mark) => mark.x), y: marks.map(() => 0), text: marks.map((mark) => mark.text) };
  const looks = { hovertemplate: "%{text}<extra></extra>", marker: { symbol: "triangle-up", size: 8, color: value }, cliponaxis: false, showlegend: false };
  const lines = marks.filter((mark) => mark.line).map(({ x }) => ({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, layer: "below", line: { color: value, width: 1, dash: "dash" } }));
  return { traces: [{ ...points, ...looks }], shapes: lines };
}

// On a logarithmic axis, Plotly takes the exponent for the position of an annotation, but the value for a point.
const placed = (value, axis) => (axis?.type === "log" ? Math.log10(value) : value);

// The last samples may be outside of the axis, where Plotly would omit their label.
const within = (value, axis) => (axis?.range && Date.parse(value) > Date.parse(axis.range[1]) ? axis.range[1] : value);

// Moves apart the labels of lines that end close together; the highest label keeps its position.
function spread(labels, axis, lines) {
  const known = lines.flatMap((trace) => trace.y).filter((value) => value !== null).map((value) => placed(value, axis));
  if (axis.rangemode === "tozero") known.push(0);
  const [low, high] = axis.range ?? [Math.min(...known), Math.max(...known)];
  const gap = 0.1 * (high - low);
  labels.sort((a, b) => b.y - a.y);
  labels.forEach((label, place) => { if (place) label.y = Math.min(label.y, labels[place - 1].y - gap); });
  return labels;
}

// Dates in the language of the page, or in English if the bundle lacks the language.
export const timeaxis = (design) => design.timeaxis[document.documentElement.lang.split("-")[0]] ?? design.timeaxis.en;

function layout(figure, design) {
  const painted = figure.data.map(paint);
  const labels = NARROW.matches ? [] : ends(painted, figure);
  const named = painted.filter((trace) => trace.name);
  // A line with a label at its end needs no legend. A legend below a chart is placed under the title of the axis.
  if (labels.length) painted.filter(isNamedLine).forEach((trace) => { trace.showlegend = false; });
  const low = NARROW.matches || figure.layout?.xaxis?.title;
  const { traces, shapes } = marked(figure);
  const times = figure.layout?.xaxis?.type === "date" || figure.data.some((trace) => typeof trace.x?.[0] === "string" && /^\d{4}-\d\d-\d\dT/.test(trace.x[0]));
  return {
    data: [...painted, ...traces],
    layout: {
      ...figure.layout,
      template: design[theme()],
      autosize: true,
      showlegend: painted.length > MOST_LABELS || named.some((trace) => trace.mode === "markers") || (NARROW.matches && named.length > 1),
      margin: { l: 56, r: labels.length ? 92 : 16, t: 8, b: 36, ...figure.layout?.margin },
      xaxis: { ...(times ? timeaxis(design) : {}), ...figure.layout?.xaxis },
      ...(low ? { legend: { y: -0.3, ...figure.layout?.legend } } : {}),
      shapes: [...(figure.layout?.shapes ?? []), ...shapes],
      annotations: [...(figure.layout?.annotations ?? []), ...labels],
      uirevision: "keep",
    },
  };
}

// The figure's own table, if its traces are no columns.
function givenTable({ head, rows }) {
  const element = Object.assign(document.createElement("table"), { className: "tight" });
  const fill = (row, tag, cells) => cells.forEach((text) => row.append(Object.assign(document.createElement(tag), { textContent: text })));
  fill(element.createTHead().insertRow(), "th", head);
  const body = element.createTBody();
  rows.forEach((cells) => fill(body.insertRow(), "td", cells));
  return element;
}

function table(figure) {
  if (figure.table) return givenTable(figure.table);
  const element = document.createElement("table");
  element.className = "tight";
  const head = element.createTHead().insertRow();
  const cell = (row, tag, text, numeric) => row.append(Object.assign(document.createElement(tag), { textContent: text, className: numeric ? "num" : "" }));
  cell(head, "th", figure.data[0]?.x?.length ? figure.across ?? translate("At") : "", false);
  figure.data.forEach((trace) => cell(head, "th", trace.name ?? "", true));
  const body = element.createTBody();
  const lines = [...(figure.data[0]?.x ?? []).map((x, place) => ({ x, place })), ...(figure.marks ?? [])];
  // Only marks must be sorted between the other traces; without marks, the order is that of the figure.
  if (figure.marks?.length) lines.sort((a, b) => Date.parse(a.x) - Date.parse(b.x));
  lines.forEach(({ x, place, text }) => {
    const row = body.insertRow();
    cell(row, "td", String(x).replace("T", " ").slice(0, 19), false);
    if (text) {
      cell(row, "td", text, false);
      row.lastChild.colSpan = figure.data.length;
      return;
    }
    figure.data.forEach((trace) => cell(row, "td", trace.y[place]?.toLocaleString?.() ?? "–", true));
  });
  return element;
}

function describe(chart, figure) {
  if (!figure.summary) return;
  $(".chart-summary", chart).textContent = figure.summary;
  $(".plot", chart).setAttribute("aria-label", figure.summary);
}

async function draw(chart, figure, zoom) {
  const plot = $(".plot", chart);
  describe(chart, figure);
  if (!figure.data.length) {
    const place = $(".waits", plot);
    if (place) place.textContent = figure.empty ?? translate("No data yet.");
    return;
  }
  const { design, Plotly } = await library();
  $(".waits", plot)?.remove();
  const plain = layout(figure, design);
  if (zoom) {
    const { data, layout: look } = zoom.apply(figure, plain.data, { ...plain.layout, ...zooming() });
    if (look.height) plot.style.minHeight = `${look.height}px`;
    await Plotly.react(plot, data, look, interaction(design, $("script", chart)?.id ?? "chart"));
    zoom.drawn(plot);
  } else await Plotly.react(plot, plain.data, plain.layout, design.config);
  if (chart.dataset.view === "table") $(".twin", chart).replaceChildren(table(figure));
}

function fail(chart, error) {
  const place = $(".plot .waits", chart);
  if (place) place.textContent = translate("The chart is not available. Use the table.");
  console.warn("chart", error);
}

export function startChart(chart) {
  if (chart.dataset.started) return;
  chart.dataset.started = "yes";
  // A figure that is not part of the page is fetched when the chart becomes visible.
  let figure = JSON.parse($('script[type="application/json"]', chart)?.textContent ?? "null");
  let waiting = null;
  const show = async () => {
    try { figure ??= await getJson(chart.dataset.url); await draw(chart, figure, zoom); } catch (error) { fail(chart, error); }
  };
  const refetch = async () => {
    waiting = null;
    try { figure = await getJson(chart.dataset.url); show(); } catch { /* the old picture stays */ }
  };
  const zoom = "zooms" in chart.dataset ? new Zoom(chart, () => show()) : null;
  const button = $("[data-chart-table]", chart);
  button.addEventListener("click", () => {
    const on = chart.dataset.view !== "table";
    chart.dataset.view = on ? "table" : "plot";
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? translate("Chart") : translate("Table");
    if (on) $(".twin", chart).replaceChildren(table(figure ?? { data: [] }));
    else show();
  });
  chart.addEventListener("tessera:update", () => { if (chart.dataset.url) waiting ??= setTimeout(refetch, PACE_MS); });
  if (chart.dataset.every) setInterval(refetch, 1000 * Number(chart.dataset.every));
  document.addEventListener("tessera-theme", show);
  NARROW.addEventListener("change", show);
  addEventListener("beforeprint", () => $$(".plot", chart).forEach((plot) => window.Plotly?.Plots.resize(plot)));
  new IntersectionObserver((seen, observer) => {
    if (seen.some((entry) => entry.isIntersecting)) { observer.disconnect(); show(); }
  }, { rootMargin: "200px" }).observe(chart);
}

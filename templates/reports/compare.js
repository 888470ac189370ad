"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts");
  const look = read("look");
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const template = () => look[isDark() ? "dark" : "light"];
  const colour = (index) => template().layout.colorway[index % 8];
  const dashes = ["solid", "dash", "dot", "dashdot"];
  const drawn = [];

  const draw = (id, make) => {
    const element = document.getElementById(id);
    const paint = () => {
      const { data, layout } = make();
      Plotly.react(element, data, { template: template(), ...layout }, look.config);
    };
    drawn.push(paint);
    paint();
    return paint;
  };
  const policies = [...new Set(charts.runs.map((run) => run.policy))];
  const order = (name) => Math.max(0, policies.indexOf(name));
  const line = (name) => ({ color: colour(order(name)), width: 2, dash: dashes[Math.floor(order(name) / 2) % 4] });
  const legend = { showlegend: true, legend: { orientation: "h", y: 1.12, yanchor: "bottom" }, margin: { l: 56, r: 16, t: 40, b: 44 } };
  const titled = (text, more) => ({ title: { text }, ...more });

  const curves = (list, xtitle) => () => ({
    data: list.map((item) => ({
      type: "scatter", mode: "lines", name: item.name, x: item.x, y: item.y, line: { ...line(item.name), shape: "hv" },
      hovertemplate: "%{y:.0f} % within %{x:.3~g}<extra>%{fullData.name}</extra>",
    })),
    layout: { ...legend, hovermode: "closest", xaxis: titled(xtitle, { type: "log", dtick: 1, showgrid: true }), yaxis: titled("Percent of jobs", { range: [0, 101] }) },
  });
  draw("chart-cdf", curves(charts.cdf, "Hours (log)"));
  draw("chart-fairness", curves(charts.fairness, "Fairness (log)"));

  draw("chart-box", () => ({
    data: charts.box.map((item) => ({
      type: "box", orientation: "h", y: [item.name], name: item.name, lowerfence: item.lowerfence, q1: item.q1, median: item.median,
      q3: item.q3, upperfence: item.upperfence, mean: item.mean, boxmean: true, line: { color: colour(order(item.name)), width: 1.5 },
    })),
    layout: {
      showlegend: false, hovermode: "closest", margin: { l: 96, r: 16, t: 8, b: 44 },
      xaxis: titled("Hours (log)", { type: "log", dtick: 1, showgrid: true }),
      yaxis: { autorange: "reversed", showgrid: false, rangemode: "normal" },
    },
  }));

  draw("chart-ratios", () => ({
    data: charts.ratios.map((item, index) => ({
      type: "scatter", mode: "markers", name: item.name, x: item.x,
      y: item.y.map((_name, place) => place + (index - (charts.ratios.length - 1) / 2) * Math.min(0.18, 0.7 / charts.ratios.length)),
      customdata: item.y,
      error_x: { type: "data", symmetric: false, array: item.plus, arrayminus: item.minus, thickness: 1.5, width: 4, color: colour(order(item.name)) },
      marker: { size: 9, color: colour(order(item.name)), symbol: ["circle", "diamond", "square", "triangle-up"][order(item.name) % 4] },
      hovertemplate: "%{customdata}: %{x:.3f}<extra>%{fullData.name}</extra>",
    })),
    layout: {
      ...legend, margin: { l: 140, r: 16, t: 40, b: 44 }, hovermode: "closest", xaxis: titled("Ratio (log)", { type: "log", showgrid: true, nticks: 8 }),
      yaxis: { autorange: "reversed", rangemode: "normal", showgrid: false, tickvals: (charts.ratios[0]?.y ?? []).map((_n, place) => place), ticktext: charts.ratios[0]?.y ?? [] },
      shapes: [{ type: "line", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1, line: { color: template().layout.xaxis.linecolor, width: 1 } }],
    },
  }));

  const fill = (select, names) => names.forEach((name, index) => {
    const option = document.createElement("option");
    option.value = String(index);
    const plain = document.createElement("textarea");
    plain.innerHTML = name; // the names are escaped; a textarea only decodes their entities
    option.textContent = plain.value;
    select.append(option);
  });
  const pairs = [...new Set(charts.runs.map((run) => run.pair))];
  const pair = document.getElementById("pair");
  fill(pair, pairs);
  const course = (key, title, more) => () => ({
    data: charts.runs.filter((run) => run.pair === pairs[Number(pair.value)]).map((run) => ({
      type: "scatter", mode: "lines", name: run.policy, x: run.time, y: run[key], line: { ...line(run.policy), width: 1.25, shape: "hv" },
      hovertemplate: "%{y:,.3~g}<extra>%{fullData.name}</extra>",
    })),
    layout: { ...legend, xaxis: titled("Hours from the first decision", { hoverformat: ".1f" }), yaxis: titled(title, more) },
  });
  const busy = draw("chart-busy", course("busy", "Percent", { range: [0, 102] }));
  const waiting = draw("chart-waiting", course("waiting", "Jobs", { rangemode: "tozero" }));
  pair.addEventListener("change", () => { busy(); waiting(); });

  const chosen = document.getElementById("run");
  fill(chosen, charts.runs.map((run) => `${run.policy} on ${run.pair}`));
  const spans = draw("chart-spans", () => {
    const run = charts.runs[Number(chosen.value)];
    const kinds = [...new Set(run.spans.map((span) => span[3]))].sort();
    const most = Math.max(1, ...run.spans.map((span) => span[4]));
    return {
      data: kinds.map((kind, index) => {
        const mine = run.spans.filter((span) => span[3] === kind);
        return {
          type: "bar", orientation: "h", name: kind, base: mine.map((span) => span[1]), x: mine.map((span) => span[2]), y: mine.map((span) => span[0]),
          text: mine.map((span) => `${run.names[span[0]]}: ${span[4]} × ${span[3]}`), textposition: "none",
          hovertemplate: "%{text}<br>%{base:.2f} h, for %{x:.2f} h<extra></extra>",
          marker: { color: colour(index), line: { width: 0 }, opacity: mine.map((span) => 0.35 + 0.65 * Math.sqrt(span[4] / most)) },
        };
      }),
      layout: {
        ...legend, barmode: "overlay", bargap: 0.1, hovermode: "closest", margin: { l: 140, r: 16, t: 40, b: 44 }, barcornerradius: 0,
        xaxis: titled("Hours from the first decision; darker is more devices", { showgrid: true, rangemode: "tozero" }),
        yaxis: { autorange: "reversed", rangemode: "normal", showgrid: false, tickvals: run.names.map((_n, place) => place).filter((place) => place % Math.ceil(run.names.length / 30) === 0),
          ticktext: run.names.filter((_n, place) => place % Math.ceil(run.names.length / 30) === 0) },
      },
    };
  });
  chosen.addEventListener("change", spans);

  const retheme = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    drawn.forEach((paint) => paint());
  };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; retheme(); });
  system.addEventListener("change", retheme);
  retheme();
})();

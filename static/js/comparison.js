// The chart of the page that compares jobs: a chip hides the lines of its job, a select chooses the metric.
import { $ } from "./dom.js";
import { Metrics } from "./metrics.js";

class Comparison extends Metrics {
  connect() {
    super.connect();
    this.select = $("[data-comparison-metric]", this.box);
    this.select.addEventListener("change", () => this.zoom(null));
  }

  query(points) {
    const query = new URLSearchParams({ jobs: this.box.dataset.jobs, name: $("[data-comparison-metric]", this.box).value, x: this.x, points });
    if (this.range) { query.set("since", this.range[0]); query.set("until", this.range[1]); }
    return query;
  }

  toggle(button) {
    const id = button.dataset.metric;
    if (!this.shown.has(id)) this.shown.add(id);
    else if (this.shown.size > 1) this.shown.delete(id);
    this.press();
    this.draw();
  }

  // The answer has the lines of all jobs; a hidden job needs no new request.
  draw() {
    if (this.figure !== this.filtered) this.whole = this.figure;
    this.filtered = { ...this.whole, data: this.whole.data.filter((trace) => this.shown.has(trace.metric)) };
    this.figure = this.filtered;
    return super.draw();
  }
}

export function startComparison(box) {
  if (box.dataset.started || !$("[data-comparison-metric]", box)) return;
  box.dataset.started = "yes";
  new Comparison(box);
}

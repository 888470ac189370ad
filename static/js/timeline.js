// Timeline: drag over the bars to zoom; arrow keys move between bars. One bar is in the tab order, and it gets the focus back
// after a zoom by key (plus and minus are in keys.js).
import { $, $$ } from "./dom.js";

const LEAST_PX = 6;
let brushing = false;

const bars = (gantt) => $$("a.run, a.reserved", gantt);

function rove(gantt, bar) {
  for (const other of bars(gantt)) other.setAttribute("tabindex", other === bar ? "0" : "-1");
}

function nearest(gantt, bar, key) {
  const row = bar.closest(".gantt-row");
  const here = bar.getBoundingClientRect();
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const all = $$("a.run, a.reserved", row);
    return all[all.indexOf(bar) + (key === "ArrowRight" ? 1 : -1)];
  }
  for (let next = row; next; ) {
    next = key === "ArrowDown" ? next.nextElementSibling : next.previousElementSibling;
    const all = next ? $$("a.run, a.reserved", next) : [];
    const away = (each) => Math.abs(each.getBoundingClientRect().left - here.left);
    if (all.length) return all.reduce((best, each) => (away(each) < away(best) ? each : best));
  }
  return null;
}

function zoomTo(gantt, from, to) {
  const since = Date.parse(gantt.dataset.since);
  const length = Date.parse(gantt.dataset.until) - since;
  const at = (share) => new Date(since + length * share).toISOString().replace(/\.\d+Z$/, "Z");
  const url = new URL(location.href);
  url.searchParams.delete("span");
  url.searchParams.set("since", at(from));
  url.searchParams.set("until", at(to));
  location.assign(url);
}

function brush(gantt) {
  const drawing = $("[data-brush]", gantt);
  let start = null;
  let box = null;
  const share = (event) => {
    const edge = drawing.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - edge.left) / edge.width));
  };
  const end = () => { box?.remove(); box = null; start = null; brushing = false; };
  gantt.addEventListener("dragstart", (event) => event.preventDefault());
  gantt.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch" || !event.target.closest(".gantt-bars")) return;
    start = { x: event.clientX, share: share(event), id: event.pointerId };
  });
  gantt.addEventListener("pointermove", (event) => {
    if (!start || (!box && Math.abs(event.clientX - start.x) < LEAST_PX)) return;
    if (!box) {
      box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      box.setAttribute("class", "brush");
      box.setAttribute("height", "100%");
      drawing.append(box);
      gantt.setPointerCapture(start.id);
      brushing = true;
    }
    const [from, to] = [start.share, share(event)].sort((a, b) => a - b);
    box.setAttribute("x", `${100 * from}%`);
    box.setAttribute("width", `${100 * (to - from)}%`);
  });
  gantt.addEventListener("pointerup", (event) => {
    if (start && box) {
      const [from, to] = [start.share, share(event)].sort((a, b) => a - b);
      gantt.addEventListener("click", (click) => click.preventDefault(), { once: true, capture: true });
      zoomTo(gantt, from, to);
    }
    end();
  });
  gantt.addEventListener("pointercancel", end);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && box) end(); });
}

function keys(gantt) {
  gantt.addEventListener("focusin", (event) => { if (event.target.matches("a.run, a.reserved")) rove(gantt, event.target); });
  gantt.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const bar = event.target.closest("a.run, a.reserved");
    if (!bar || !event.key.startsWith("Arrow")) return;
    nearest(gantt, bar, event.key)?.focus();
    event.preventDefault();
    event.stopPropagation();
  });
}

const KEPT = "tessera.timeline-bar";

/** The next page receives the address of the focused bar. */
function keepFocus(gantt) {
  gantt.closest("section")?.addEventListener("click", (event) => {
    const bar = event.target.closest("[data-move]") && document.activeElement?.closest("a.run, a.reserved");
    if (!bar || !gantt.contains(bar)) return;
    try { sessionStorage.setItem(KEPT, bar.getAttribute("href") ?? ""); } catch { /* nothing is kept here */ }
  });
  let kept = null;
  try {
    kept = sessionStorage.getItem(KEPT);
    sessionStorage.removeItem(KEPT);
  } catch { /* a browser that keeps nothing is no error */ }
  const all = bars(gantt);
  if (kept !== null) (all.find((bar) => bar.getAttribute("href") === kept) ?? all[0])?.focus();
}

export function startTimeline(gantt) {
  if (gantt.dataset.started) return;
  gantt.dataset.started = "yes";
  const first = bars(gantt)[0];
  if (first) rove(gantt, first);
  brush(gantt);
  keys(gantt);
  keepFocus(gantt);
  // The timeline does not move during interaction: an update waits while a drag is in progress or a bar has the focus.
  gantt.closest("section")?.addEventListener("htmx:beforeRequest", (event) => {
    const own = event.detail.elt === gantt.closest("section");
    if (own && (brushing || document.hidden || gantt.contains(document.activeElement))) event.preventDefault();
  });
}

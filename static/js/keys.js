// Keyboard shortcuts of the design, section 7. Single keys do nothing in fields, and a setting switches them off.
import { $, $$, isTyping, memory } from "./dom.js";
import { openDialog } from "./menus.js";
import { listKey } from "./rows.js";
import { toggleTheme } from "./theme.js";

const CHORD_MS = 1200;
let chordUntil = 0;

const on = () => memory.get("single-keys") !== "off";

function go(key) {
  const link = $(`[data-go="${CSS.escape(key)}"]`);
  link?.click();
  return Boolean(link);
}

function search() {
  const field = $("[data-search]");
  if (!field) return false;
  field.form.classList.add("open");
  field.focus();
  field.select();
  return true;
}

function jobKey(event) {
  const tabs = $$("[data-job-tabs] a");
  if (tabs.length && /^[1-9]$/.test(event.key)) {
    tabs[Number(event.key) - 1]?.click();
    return true;
  }
  const wanted = { l: "[data-log-follow]", n: "[data-log-next]", N: "[data-log-previous]", y: "[data-copy-id] [data-copy], [data-copy-id][data-copy]" }[event.key];
  const button = wanted && $(wanted);
  button?.click();
  return Boolean(button);
}

/** Plus and minus follow the zoom links of the timeline, independent of the focus. */
function zoomKey(event) {
  const link = { "+": $('[data-move="+"]'), "=": $('[data-move="+"]'), "-": $('[data-move="-"]') }[event.key];
  link?.click();
  return Boolean(link);
}

function mapKey(event) {
  const tile = document.activeElement?.closest?.("[data-map] .tile");
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!tile || !step) return false;
  nearestTile(tile, step)?.focus();
  return true;
}

function nearestTile(tile, [dx, dy]) {
  const from = tile.getBoundingClientRect();
  const middle = (box) => [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  const [x, y] = middle(from);
  let best = null;
  let least = Infinity;
  for (const other of $$("a.tile", tile.closest("[data-map]"))) {
    if (other === tile) continue;
    const box = other.getBoundingClientRect();
    const [ox, oy] = middle(box);
    const along = (ox - x) * dx + (oy - y) * dy;
    const across = dx ? Math.abs(oy - y) : Math.max(0, box.left - x, x - box.right);
    if (along <= 1 || (dx && across > 4)) continue;
    const distance = along + 3 * across;
    if (distance < least) { least = distance; best = other; }
  }
  return best;
}

function single(event) {
  if (performance.now() < chordUntil) {
    chordUntil = 0;
    return go(event.key);
  }
  switch (event.key) {
    case "g": chordUntil = performance.now() + CHORD_MS; return true;
    case "/": return search();
    case "?": openDialog("keys"); return true;
    case "t": toggleTheme(); return true;
    default: return mapKey(event) || zoomKey(event) || jobKey(event) || listKey(event);
  }
}

export function startKeys() {
  const choice = $("[data-keys-on]");
  if (choice) {
    choice.checked = on();
    choice.addEventListener("change", () => memory.set("single-keys", choice.checked ? "on" : "off"));
  }
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && isTyping(event.target)) { event.target.blur(); return; }
    if (isTyping(event.target)) return;
    const arrows = event.key.startsWith("Arrow") || event.key === "Enter" || event.key === "Escape";
    if (!on() && !arrows) return;
    if (single(event)) event.preventDefault();
  });
  $("[data-search]")?.addEventListener("blur", (event) => event.target.form.classList.remove("open"));
}

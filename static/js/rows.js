// Lists: current row, selection with ranges, bulk bar, row keys. Set data-rows on the tbody, and data-key and data-href on each
// row. The checkbox of a row has class "check" and name "selected". Buttons with data-row-action ("stop", "clone", "cordon",
// "drain") handle the keys s, c and d.
import { $, $$, delegate } from "./dom.js";

let lastPicked = null;

const body = () => $("tbody[data-rows]");
const rows = () => { const found = body(); return found ? $$("tr[data-key]", found) : []; };
export const currentRow = () => $('tbody[data-rows] tr[aria-current="true"]');

function setCurrent(row, { focus = true } = {}) {
  for (const other of rows()) {
    const here = other === row;
    if (here) other.setAttribute("aria-current", "true");
    else other.removeAttribute("aria-current");
    other.tabIndex = here ? 0 : -1;
  }
  if (focus) row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function move(step) {
  const all = rows();
  if (!all.length) return false;
  const here = all.indexOf(currentRow());
  setCurrent(all[Math.min(all.length - 1, Math.max(0, here < 0 ? (step > 0 ? 0 : all.length - 1) : here + step))]);
  return true;
}

const box = (row) => $("input.check[name=selected]", row);

function pick(row, on) {
  const check = box(row);
  if (!check) return;
  check.checked = on;
  row.classList.toggle("selected", on);
}

function pickTo(row) {
  const all = rows();
  const [from, to] = [all.indexOf(lastPicked), all.indexOf(row)].sort((a, b) => a - b);
  for (const each of all.slice(Math.max(0, from), to + 1)) pick(each, true);
}

// An action may not apply to all selected rows: with data-needs="stop" it applies to rows with data-stop="yes".
// Another value is the cause; the button's attribute of this name is its text: data-ended="# has ended.|# have ended."
const suits = (button) => (row) => !button.dataset.needs || row.dataset[button.dataset.needs] === "yes";
const counted = (plural, count) => plural.split("|")[count === 1 ? 0 : 1].replace("#", count);

function sayWhoIsLeft(button, picked, able) {
  const why = picked.map((row) => row.dataset[button.dataset.needs]).filter((word) => word !== "yes");
  const left = [...new Set(why)].map((word) => counted(button.dataset[word], why.filter((other) => other === word).length));
  button.dataset.body ??= button.dataset.confirmBody;
  button.dataset.confirmBody = [button.dataset.body, ...left].join(" ");
  button.disabled = able.length === 0;
}

function sendThoseThatSuit({ target, formData }) {
  const button = $$("[data-needs]", target).find((each) => formData.get(each.name) === each.value);
  if (!button) return;
  formData.delete("selected");
  for (const row of rows().filter((each) => box(each)?.checked).filter(suits(button))) formData.append("selected", row.dataset.key);
}

/** Update the rows, the checkbox of the header and the bulk bar from the checkboxes. */
export function refreshSelection() {
  const all = rows().filter(box);
  const picked = all.filter((row) => box(row).checked);
  for (const row of all) row.classList.toggle("selected", box(row).checked);
  const head = $("input.check[data-pick-all]");
  if (head) {
    head.checked = picked.length > 0 && picked.length === all.length;
    head.indeterminate = picked.length > 0 && picked.length < all.length;
  }
  const bar = $("[data-bulk]");
  if (!bar) return;
  bar.hidden = picked.length === 0;
  for (const place of $$("[data-bulk-count]", bar)) place.textContent = String(picked.length);
  for (const button of $$("[data-confirm-plural]", bar)) {
    const able = picked.filter(suits(button));
    const words = counted(button.dataset.confirmPlural, able.length);
    button.dataset.confirm = `${words}?`;
    button.dataset.confirmVerb = words;
    button.dataset.confirmList = JSON.stringify(able.slice(0, 20).map((row) => [row.dataset.name ?? row.dataset.key, row.dataset.key]));
    if (button.dataset.needs) sayWhoIsLeft(button, picked, able);
    const label = $("[data-words]", button);
    if (label) label.textContent = words;
  }
}

function toggle(row, range) {
  if (range && lastPicked) pickTo(row);
  else pick(row, !box(row)?.checked);
  lastPicked = row;
  refreshSelection();
}

export function clearSelection() {
  const picked = rows().filter((row) => box(row)?.checked);
  picked.forEach((row) => pick(row, false));
  refreshSelection();
  return picked.length > 0;
}

function act(row, ...names) {
  for (const name of names) {
    const scope = rows().some((each) => box(each)?.checked) ? $("[data-bulk]") : row;
    const button = scope && $(`[data-row-action="${name}"]`, scope);
    if (button) { button.click(); return true; }
  }
  return false;
}

const turn = (which) => { const link = $(`[data-page="${which}"]`); link?.click(); return Boolean(link); };

/** Handle a key in a list; returns true if it had an effect. */
export function listKey(event) {
  if (!body()) return false;
  const row = currentRow();
  switch (event.key) {
    case "j": return move(1);
    case "k": return move(-1);
    case "x": case "X": if (row) toggle(row, event.shiftKey); return Boolean(row);
    case "s": return row ? act(row, "stop") : act(null, "stop");
    case "c": return act(row, "clone", "cordon");
    case "d": return act(row, "drain");
    case "f": { const field = $("[data-filter]"); field?.focus(); return Boolean(field); }
    case "[": return turn("previous") || turn("first");
    case "]": return turn("next");
    case "Escape": return clearSelection();
    case "Enter": if (row && document.activeElement === row) { open(row, event); return true; } return false;
    default: return false;
  }
}

function open(row, event) {
  const address = row.dataset.href;
  if (!address) return;
  if (event.ctrlKey || event.metaKey) window.open(address, "_blank", "noopener");
  else location.assign(address);
}

export function startRows() {
  delegate("click", "tbody[data-rows] tr[data-key]", (event, row) => {
    if (event.target.closest("a, button, input, label, summary, details, form")) return;
    if (!String(getSelection())) open(row, event);
  });
  delegate("focusin", "tbody[data-rows] tr[data-key]", (_event, row) => setCurrent(row, { focus: false }));
  delegate("click", "tbody[data-rows] input.check[name=selected]", (event, check) => {
    const row = check.closest("tr");
    if (event.shiftKey && lastPicked) pickTo(row);
    lastPicked = row;
    refreshSelection();
  });
  delegate("change", "input.check[data-pick-all]", (_event, head) => { rows().forEach((row) => pick(row, head.checked)); refreshSelection(); });
  delegate("click", "[data-bulk-clear]", clearSelection);
  document.addEventListener("formdata", sendThoseThatSuit);
  document.addEventListener("htmx:afterSettle", () => { const all = rows(); if (all.length && !currentRow()) all[0].tabIndex = 0; refreshSelection(); });
  const first = rows()[0];
  if (first) first.tabIndex = 0;
  refreshSelection();
}


// Command palette: Ctrl-K or Cmd-K. Results come from the server; pages and actions are data of the page.
import { $, getJson, icon, translate } from "./dom.js";
import { openDialog } from "./menus.js";
import { toggleTheme } from "./theme.js";

const WAIT_MS = 120;
const KINDS = [
  ["job", "Jobs", "list"], ["action", "Pages and actions", "right"], ["sweep", "Sweeps", "list"], ["virtual-cluster", "Virtual clusters", "clusters"],
  ["node", "Nodes", "nodes"], ["person", "People", "people"], ["document", "Documentation", "audit"],
];
const acts = { theme: toggleTheme, keys: () => openDialog("keys") };
let box, field, list, status, commands;
let options = [];
let chosen = -1;
let newest = 0;
let timer;
let opener = null;

/** Pages and actions of which a word begins with the text. */
function matching(text) {
  const wanted = ` ${text.toLowerCase()}`;
  return commands.filter((one) => !text || ` ${one.name.toLowerCase()}`.includes(wanted)).map((one) => ({ kind: "action", detail: "", ...one }));
}

/** The name with the matched letters marked. */
function marked(name, text) {
  const span = document.createElement("span");
  const start = text ? name.toLowerCase().indexOf(text.toLowerCase()) : -1;
  if (start < 0) { span.textContent = name; return span; }
  const mark = document.createElement("mark");
  mark.textContent = name.slice(start, start + text.length);
  span.append(name.slice(0, start), mark, name.slice(start + text.length));
  return span;
}

function choose(index) {
  chosen = options.length ? (index + options.length) % options.length : -1;
  for (const [number, option] of options.entries()) option.element.setAttribute("aria-selected", String(number === chosen));
  if (chosen < 0) { field.removeAttribute("aria-activedescendant"); return; }
  field.setAttribute("aria-activedescendant", options[chosen].element.id);
  options[chosen].element.scrollIntoView({ block: "nearest" });
}

function optionOf(result, text, symbol) {
  const element = document.createElement("li");
  element.id = `palette-${options.length}`;
  element.setAttribute("role", "option");
  element.append(icon(symbol), marked(result.name, text));
  if (result.detail) {
    const detail = document.createElement("span");
    detail.className = "t3";
    detail.textContent = result.detail;
    element.append(detail);
  }
  const index = options.length;
  element.addEventListener("mousemove", () => { if (chosen !== index) choose(index); });
  element.addEventListener("click", () => { choose(index); run(); });
  options.push({ element, ...result });
  return element;
}

function show(results, text) {
  options = [];
  list.replaceChildren();
  for (const [kind, title, symbol] of KINDS) {
    const found = results.filter((one) => one.kind === kind);
    if (!found.length) continue;
    const group = document.createElement("ul");
    const heading = document.createElement("div");
    heading.id = `palette-of-${kind}`;
    heading.className = "group";
    heading.textContent = results.title ?? translate(title);
    group.setAttribute("role", "group");
    group.setAttribute("aria-labelledby", heading.id);
    group.append(...found.map((one) => optionOf(one, text, symbol)));
    list.append(heading, group);
  }
  field.setAttribute("aria-expanded", String(options.length > 0));
  status.textContent = translate(options.length === 1 ? "{number} result" : "{number} results", { number: options.length });
  choose(0);
}

async function search() {
  const typed = field.value.trim();
  const turn = ++newest;
  if (!typed || typed.startsWith(">")) { show(matching(typed.slice(1).trim()), typed.slice(1).trim()); return; }
  const text = typed.replace(/^[#@]\s*/, "");
  const own = typed === text ? matching(text) : [];
  try {
    const { results } = await getJson(`${box.dataset.url}?q=${encodeURIComponent(typed)}`);
    if (turn === newest) show([...results, ...own], text);
  } catch {
    if (turn !== newest) return;
    show(own, text);
    status.textContent = translate("The search is not available.");
  }
}

/** Show what can be done with the selected job, in place of the results. */
function showActions() {
  const job = options[chosen];
  if (job?.kind !== "job") return;
  newest += 1;
  const actions = [
    { name: translate("Open"), url: job.url },
    { name: translate("Open log"), url: `${job.url}logs/` },
    { name: translate("Events"), url: `${job.url}events/` },
    { name: translate("Edit and resubmit"), url: `${box.dataset.newJob}?clone=${job.id}` },
    { name: translate("Stop job …"), url: `${job.url}#do-stop` },
  ].map((one) => ({ kind: "action", detail: "", ...one }));
  actions.title = translate("Actions on {name}", { name: job.name });
  show(actions, "");
}

function run() {
  const one = options[chosen];
  if (!one) return;
  box.close();
  if (one.act) acts[one.act]?.();
  else if (one.url) window.location.assign(one.url);
}

function key(event) {
  const steps = { ArrowDown: chosen + 1, ArrowUp: chosen - 1 };
  if (event.isComposing) return;
  if (event.key === "Enter") run();
  else if (event.key in steps) choose(steps[event.key]);
  else if (event.key === "Tab" && !event.shiftKey && options[chosen]?.kind === "job") showActions();
  else return;
  event.preventDefault();
}

function open() {
  if (document.querySelector("dialog[open]")) return;
  opener = document.activeElement;
  box.showModal();
  field.value = "";
  field.focus();
  search();
}

export function startPalette() {
  box = $("#palette");
  if (!box) return;
  [field, list, status] = [$("input", box), $("[role=listbox]", box), $("[role=status]", box)];
  commands = JSON.parse($("#palette-commands").textContent);
  field.addEventListener("keydown", key);
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, WAIT_MS);
  });
  box.addEventListener("close", () => { newest += 1; if (opener?.isConnected) opener.focus(); });
  for (const button of document.querySelectorAll("[data-palette]")) button.addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    if (box.open) box.close(); else open();
  });
  // An action of the palette on another page asks first, as its button does.
  if (window.location.hash === "#do-stop") $("#do-stop")?.click();
}

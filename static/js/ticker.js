// Round ticker: the last twelve rounds as bars, with number, length, policy and age; a banner if rounds stop.
import { $, $$, getJson, icon, translate } from "./dom.js";
import { duration, now } from "./times.js";

const SHOWN = 12;
const HEIGHT = 16;
const FIRST_CHECK_MS = 5_000;
const CHECK_MS = 20_000 * (1 + Math.random());
const SPACE = "http://www.w3.org/2000/svg";

let rounds = [];
let nextCheck = null;
let answeredAt = -Infinity;

const seconds = (round) => round.seconds ?? round.duration_seconds ?? (round.duration_ms ?? 0) / 1000;
const moment = (round) => Date.parse(round.committed_at ?? round.finished_at ?? round.at ?? round.started_at ?? "");

function take(data) {
  const fresh = data?.results ?? data?.rounds ?? (Array.isArray(data) ? data : [data]);
  const all = new Map(rounds.map((round) => [round.number, round]));
  for (const round of fresh) if (round && round.number !== undefined) all.set(round.number, round);
  rounds = [...all.values()].sort((a, b) => a.number - b.number).slice(-SHOWN);
}

function policies(round) {
  const names = Array.isArray(round.policies) ? [...new Set(round.policies)] : [round.policy].filter(Boolean);
  return names.length > 1 ? translate("{number} policies", { number: names.length }) : names[0] ?? "";
}

function draw(element) {
  const svg = $("svg", element);
  const longest = Math.max(...rounds.map(seconds), 0.001);
  svg.replaceChildren(...rounds.map((round, place) => {
    const height = Math.max(2, Math.round((HEIGHT - 2) * seconds(round) / longest));
    const bar = document.createElementNS(SPACE, "rect");
    const box = { x: 5 * (SHOWN - rounds.length + place), y: HEIGHT - height, width: 3, height };
    for (const [name, value] of Object.entries(box)) bar.setAttribute(name, value);
    if (place === rounds.length - 1) bar.setAttribute("class", "now");
    return bar;
  }));
  const last = rounds.at(-1);
  $("[data-ticker-number]", element).textContent = last.number.toLocaleString(document.documentElement.lang || "en");
  $("[data-ticker-seconds]", element).textContent = duration(seconds(last));
  $("[data-ticker-policy]", element).textContent = policies(last);
}

function age(element) {
  const last = rounds.at(-1);
  const since = last ? (now() - moment(last)) / 1000 : NaN;
  const interval = Number(document.body.dataset.roundSeconds || 10);
  // The bars rendered with the page have no times, and if rounds have stopped, no message will add one.
  if (Number.isNaN(since)) {
    if (element.dataset.late === "bad" || performance.now() > 3000 * interval) check(element);
    return;
  }
  const late = since > 3 * interval ? "bad" : since > 2 * interval ? "warn" : "";
  element.dataset.late = late;
  $("[data-ticker-age]", element).textContent = translate("{time} ago", { time: duration(Math.max(0, Math.floor(since))) });
  if (late !== "bad") { nextCheck = null; banner(null); return; }
  check(element);
  // Without a response of the portal, the connection may be down instead of the rounds.
  banner(performance.now() - answeredAt < 3 * CHECK_MS ? since : null);
}

// The portal is asked whether rounds have stopped or only their messages, since the page cannot distinguish them. The tabs
// ask at different times, because messages stopped for all of them at once.
async function check(element) {
  nextCheck ??= performance.now() + FIRST_CHECK_MS * Math.random();
  if (performance.now() < nextCheck) return;
  nextCheck = performance.now() + CHECK_MS;
  try { take(await getJson(element.dataset.twin)); } catch { return; }
  answeredAt = performance.now();
  if (rounds.length) { draw(element); age(element); }
}

function banner(since) {
  const place = $("[data-banner]");
  if (!place) return;
  let note = $("[data-no-round]", place);
  if (since === null) { note?.remove(); return; }
  if (!note) {
    note = Object.assign(document.createElement("div"), { className: "note bad" });
    note.dataset.noRound = "";
    note.setAttribute("role", "alert");
    const text = document.createElement("span");
    text.append(document.createElement("b"), ` ${translate("Running jobs continue; no new jobs start.")}`);
    note.append(icon("failed"), text);
    place.replaceChildren(note);
  }
  $("b", note).textContent = translate("No scheduling round for {time}.", { time: duration(since) });
}

export function startTicker() {
  const element = $("[data-ticker]");
  if (!element) return;
  // The bars rendered with the page remain until newer rounds replace them.
  rounds = $$("svg rect[data-round]", element).map((bar) => ({ number: Number(bar.dataset.round), seconds: Number(bar.dataset.seconds) }));
  element.addEventListener("tessera:update", (event) => {
    take(event.detail.data);
    if (rounds.length) { draw(element); age(element); }
  });
  setInterval(() => age(element), 1000);
}

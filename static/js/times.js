// Relative times, computed with the server's clock instead of the clock of this machine.
import { $, $$, translate } from "./dom.js";

const NB = "\u00a0";
const DAY = 86400;
let offset = 0;

export const now = () => Date.now() + offset;

/** Format seconds with at most two units, in the format of the server. */
export function duration(seconds) {
  if (seconds > 0 && seconds < 0.995) return `${seconds.toFixed(2)}${NB}${translate("s")}`;
  const whole = Math.max(0, Math.round(seconds));
  const two = (a, unit, b, small) => `${a}${NB}${translate(unit)}${b ? ` ${b}${NB}${translate(small)}` : ""}`;
  if (whole < 60) return `${whole}${NB}${translate("s")}`;
  if (whole < 3600) {
    const minutes = Math.floor(whole / 60);
    return two(minutes, "min", minutes < 5 ? whole % 60 : 0, "s");
  }
  if (whole < DAY) {
    const minutes = Math.round(whole / 60);
    const rest = minutes % 60;
    return two(Math.floor(minutes / 60), "h", rest ? String(rest).padStart(2, "0") : 0, "min");
  }
  const hours = Math.round(whole / 3600);
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

function oneUnit(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)}${NB}${translate("s")}`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}${NB}${translate("min")}`;
  return duration(Math.floor(seconds / 60) * 60);
}

/** Return `12 s ago` or `in 4 min`; null from one day on, where the text of the server remains. */
export function ago(moment) {
  const seconds = (now() - moment) / 1000;
  if (Math.abs(seconds) >= DAY) return null;
  if (Math.abs(seconds) < 1) return translate("now");
  return seconds > 0 ? translate("{time} ago", { time: oneUnit(seconds) }) : translate("in {time}", { time: oneUnit(-seconds) });
}

export function refreshTimes(root = document) {
  for (const element of $$("time[data-ago], time[data-since]", root)) {
    const moment = Date.parse(element.dateTime);
    if (Number.isNaN(moment)) continue;
    const text = "since" in element.dataset ? duration((now() - moment) / 1000) : ago(moment);
    if (text !== null && element.textContent !== text) element.textContent = text;
  }
}

export function startTimes() {
  const server = Date.parse($('meta[name="server-time"]')?.content ?? "");
  if (!Number.isNaN(server)) offset = server - Date.now() + Math.max(0, performance.now() - (performance.getEntriesByType("navigation")[0]?.responseStart ?? performance.now()));
  setInterval(() => { if (!document.hidden) refreshTimes(); }, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refreshTimes(); });
  document.addEventListener("htmx:afterSettle", () => refreshTimes());
  refreshTimes();
}

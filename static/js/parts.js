// Parts that follow a topic. An element with data-part inside (or with) a data-topic receives `tessera:news` after a message:
// immediately, and then at most every second (data-pace sets another time in ms; 5 s for parts that only extend curves).
// The last message is never skipped.
import { $$ } from "./dom.js";

const PACE_MS = 1000;
const SLOW_PACE_MS = 5000;
const waiting = new WeakMap();
const last = new WeakMap();

function wake(part, pace) {
  const due = Math.max(0, (last.get(part) ?? -Infinity) + pace - performance.now());
  const known = waiting.get(part);
  if (known && known.at <= performance.now() + due) return;
  if (known) clearTimeout(known.timer);
  const timer = setTimeout(() => {
    waiting.delete(part);
    last.set(part, performance.now());
    part.dispatchEvent(new CustomEvent("tessera:news", { bubbles: false }));
  }, due);
  waiting.set(part, { timer, at: performance.now() + due });
}

function spread(event) {
  const slow = Boolean(event.detail?.data?.goodput);
  const home = event.target;
  for (const part of [...(home.matches("[data-part]") ? [home] : []), ...$$("[data-part]", home)]) wake(part, Math.max(slow ? SLOW_PACE_MS : 0, Number(part.dataset.pace) || PACE_MS));
}

// Elements opened by the user remain open, and unchanged elements are not touched.
function keep(event) {
  const { target, fragment, serverResponse } = event.detail;
  const fresh = fragment ?? null;
  if (!fresh || serverResponse !== undefined) return;
  const replacement = fresh.firstElementChild ?? fresh;
  $$("details", target).forEach((old, place) => {
    const twin = $$("details", replacement)[place];
    if (old.open && twin) twin.open = true;
  });
  if (target.isEqualNode(replacement)) event.detail.shouldSwap = false;
}

export function startParts() {
  for (const type of ["tessera:update", "tessera:refetch"]) document.addEventListener(type, spread, true);
  document.addEventListener("htmx:oobBeforeSwap", keep);
}

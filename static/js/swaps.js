// Common handling of all htmx requests: errors are shown as text, an expired session leads to the sign-in page.
import { translate } from "./dom.js";
import { toast } from "./toasts.js";

function words(xhr) {
  try {
    const problem = JSON.parse(xhr.responseText);
    const first = problem.errors?.[0];
    return [problem.title, first && `${first.field}: ${first.message}`].filter(Boolean).join(" ");
  } catch {
    return { 403: translate("Your role does not allow this."), 404: translate("It no longer exists."), 409: translate("Another person changed it meanwhile. Reload the page."), 429: translate("Too many requests. Try again later.") }[xhr.status];
  }
}

const shown = new WeakMap();
let focused = null;

// Attributes that identify the focused element among the others of its part, before and after a swap.
function mark(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  for (const name of ["href", "name", "aria-label", "data-colour-by"]) {
    const value = element.getAttribute(name);
    if (value) return `${element.localName}[${name}="${CSS.escape(value)}"]`;
  }
  return null;
}

// An unchanged part is not touched, and the focus inside a part survives its swap.
function keepStill(event) {
  const { target, xhr, requestConfig } = event.detail;
  if (requestConfig?.verb !== "get" || xhr.status !== 200) return;
  if (shown.get(target) === xhr.responseText) event.detail.shouldSwap = false;
  shown.set(target, xhr.responseText);
  const active = document.activeElement;
  focused = active && active !== target && target.contains(active) ? { target, selector: mark(active) } : null;
}

function returnFocus() {
  if (!focused?.selector || document.activeElement !== document.body) return;
  focused.target.querySelector(focused.selector)?.focus({ preventScroll: true });
  focused = null;
}

export function startSwaps() {
  document.addEventListener("htmx:beforeSwap", keepStill);
  document.addEventListener("htmx:afterSettle", returnFocus);
  document.addEventListener("htmx:responseError", (event) => {
    const { xhr } = event.detail;
    if (xhr.status === 401) { location.reload(); return; }
    toast(words(xhr) ?? translate("The server returned {status}. No changes were made.", { status: xhr.status }), { tone: "bad" });
  });
  document.addEventListener("htmx:sendError", (event) => {
    if (event.detail.requestConfig?.verb !== "get") toast(translate("The server does not respond. No changes were made."), { tone: "bad" });
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status === 422) { event.detail.shouldSwap = true; event.detail.isError = false; }
  });
}

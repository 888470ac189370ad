// What every htmx request of the portal has in common: errors become words, a lost session leads to the sign-in page.
import { toast } from "./toasts.js";

function words(xhr) {
  try {
    const problem = JSON.parse(xhr.responseText);
    const first = problem.errors?.[0];
    return [problem.title, first && `${first.field}: ${first.message}`].filter(Boolean).join(" ");
  } catch {
    return { 403: "Your role does not allow this.", 404: "It is no longer there.", 409: "Somebody changed it meanwhile. Reload the page.", 429: "Too many requests; wait a little." }[xhr.status];
  }
}

export function startSwaps() {
  document.addEventListener("htmx:responseError", (event) => {
    const { xhr } = event.detail;
    if (xhr.status === 401) { location.reload(); return; }
    toast(words(xhr) ?? `The server answered ${xhr.status}; nothing was changed.`, { tone: "bad" });
  });
  document.addEventListener("htmx:sendError", (event) => {
    if (event.detail.requestConfig?.verb !== "get") toast("The server does not answer; nothing was changed.", { tone: "bad" });
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status === 422) { event.detail.shouldSwap = true; event.detail.isError = false; }
  });
}

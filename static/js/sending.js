// A form is not sent again by a second click while its request is in progress; both requests would take effect.
const PATIENCE_MS = 10_000; // after this time the form may be sent again, because the user may have stopped the request

let sent = new WeakMap();

export function startSending() {
  // Registered last, after the handlers of dialogs and htmx.
  addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.getAttribute("method")?.toLowerCase() !== "post") return;
    if (performance.now() - (sent.get(form) ?? -Infinity) < PATIENCE_MS) event.preventDefault();
    else sent.set(form, performance.now());
  });
  addEventListener("pageshow", (event) => { if (event.persisted) sent = new WeakMap(); });
}

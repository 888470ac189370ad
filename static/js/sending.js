// A form that is on its way is not sent a second time by another click: both would be answered, and make two things.
const PATIENCE_MS = 10_000; // then it may be sent again: the load may have been stopped

let sent = new WeakMap();

export function startSending() {
  // Last of all, so that dialogs and htmx have taken what is theirs.
  addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.getAttribute("method")?.toLowerCase() !== "post") return;
    if (performance.now() - (sent.get(form) ?? -Infinity) < PATIENCE_MS) event.preventDefault();
    else sent.set(form, performance.now());
  });
  addEventListener("pageshow", (event) => { if (event.persisted) sent = new WeakMap(); });
}

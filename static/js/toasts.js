// Toasts: one sentence and at most one link, for 6 s; errors remain. A toast is never the only place of a fact.
import { $, $$, delegate } from "./dom.js";

const SHOWN_MS = 6000;
const MOST = 4;
const LOOKS = { ok: "succeeded", warn: "warning", bad: "failed", busy: "info" };

function leave(toast) {
  let timer = setTimeout(() => toast.remove(), SHOWN_MS);
  toast.addEventListener("pointerenter", () => clearTimeout(timer));
  toast.addEventListener("pointerleave", () => { timer = setTimeout(() => toast.remove(), SHOWN_MS); });
  toast.addEventListener("focusin", () => clearTimeout(timer));
}

/** Show `text`; options: tone (ok, warn, bad), link {href, text}, action {text, run}, stays. */
export function toast(text, { tone = "ok", link, action, stays = tone === "bad" } = {}) {
  const template = $("[data-toast-template]");
  const shelf = $("[data-toasts]");
  if (!template || !shelf) return null;
  const element = template.content.firstElementChild.cloneNode(true);
  element.setAttribute("role", tone === "bad" ? "alert" : "status");
  $(".st", element).classList.add(tone);
  $("use", element).setAttribute("href", `${document.body.dataset.icons}#${LOOKS[tone] ?? "info"}`);
  $("[data-toast-text]", element).textContent = text;
  if (link) {
    const anchor = $("[data-toast-link]", element);
    Object.assign(anchor, { href: link.href, textContent: link.text, hidden: false });
  }
  if (action) {
    const button = $("[data-toast-action]", element);
    Object.assign(button, { textContent: action.text, hidden: false });
    button.addEventListener("click", () => { element.remove(); action.run(); });
  }
  shelf.append(element);
  while (shelf.children.length > MOST) shelf.firstElementChild.remove();
  if (!stays) leave(element);
  return element;
}

export function startToasts() {
  delegate("click", "[data-toast-close]", (_event, button) => button.closest("[data-toast]").remove());
  $$("[data-toast]:not([data-stays])").forEach(leave);
  // A response may carry HX-Trigger: {"tessera:toast": {"text": …, "tone": …}}.
  document.addEventListener("tessera:toast", (event) => toast(event.detail.text ?? event.detail.value, event.detail));
}

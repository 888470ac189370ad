// Drawer, pop-up menus, dialogs that open from a button, copy buttons, steppers.
import { $, $$, delegate, translate } from "./dom.js";
import { toast } from "./toasts.js";

function setDrawer(open) {
  const nav = $("#nav");
  const button = $("[data-drawer]");
  nav.classList.toggle("open", open);
  button.setAttribute("aria-expanded", String(open));
  if (open) $("a, button", nav)?.focus();
  else if (nav.contains(document.activeElement)) button.focus();
}

export function openDialog(id) {
  const box = document.getElementById(id);
  if (!(box instanceof HTMLDialogElement) || box.open) return;
  const opener = document.activeElement;
  // The element that opened the menu may have been replaced by a swap.
  const back = () => (opener?.isConnected ? opener : document.getElementById(opener?.id))?.focus();
  box.addEventListener("close", back, { once: true });
  box.showModal();
}

function closeMenus(except = null) {
  for (const menu of $$("details[data-pop][open]")) if (menu !== except) menu.open = false;
}

async function copy(text, label) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text, className: "sr" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(translate("{what} copied", { what: label }));
}

export function startMenus() {
  delegate("click", "[data-drawer]", () => setDrawer(!$("#nav").classList.contains("open")));
  delegate("click", "[data-drawer-close]", () => setDrawer(false));
  delegate("click", "[data-open]", (_event, button) => openDialog(button.dataset.open));
  delegate("click", "dialog [data-close]", (_event, button) => button.closest("dialog").close());
  delegate("click", "[data-copy]", (_event, button) => copy(button.dataset.copy, button.dataset.copyLabel ?? translate("Text")));
  document.addEventListener("click", (event) => {
    closeMenus(event.target instanceof Element ? event.target.closest("details[data-pop]") : null);
    if (event.target instanceof HTMLDialogElement && event.target.id !== "confirm") event.target.close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = $("details[data-pop][open]");
    if (open) { open.open = false; $("summary", open).focus(); }
    if ($("#nav")?.classList.contains("open")) setDrawer(false);
  });
  delegate("click", ".stepper button", (_event, button) => {
    const input = $("input", button.parentElement);
    if (button.dataset.step === "down") input.stepDown(); else input.stepUp();
    input.dispatchEvent(new Event("input", { bubbles: true }));
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });
  delegate("change", "[data-submits]", (_event, field) => field.form.requestSubmit());
}

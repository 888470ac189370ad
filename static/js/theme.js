// Light or dark theme: that of the system until the user selects one; the server stores the selection for the next page.
import { $, delegate, post, translate } from "./dom.js";

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

export const theme = () => root.dataset.theme || (system.matches ? "dark" : "light");

function announce() {
  document.dispatchEvent(new CustomEvent("tessera-theme", { detail: theme() }));
}

export function toggleTheme() {
  root.dataset.theme = theme() === "dark" ? "light" : "dark";
  announce();
  const url = document.body.dataset.themeUrl;
  if (url) post(url, { theme: root.dataset.theme }).catch(() => {});
}

export function startTheme() {
  delegate("click", "[data-toggle-theme]", toggleTheme);
  system.addEventListener("change", () => { if (!root.dataset.theme) announce(); });
  $("[data-toggle-theme]")?.setAttribute("title", translate("Light or dark"));
}

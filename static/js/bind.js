// data-bind="jobs.running": shows the number at this path of the latest message of the nearest data-topic.
import { $, $$, at } from "./dom.js";

const format = new Intl.NumberFormat(document.documentElement.lang || "en", { maximumFractionDigits: 2 });

function show(element, value) {
  const place = $("a, span", element) ?? element;
  const text = typeof value === "number" ? format.format(value) : String(value);
  if (place.textContent === text) return;
  place.textContent = text;
  element.classList.remove("changed");
  requestAnimationFrame(() => element.classList.add("changed"));
}

export function startBind() {
  document.addEventListener("animationend", (event) => event.target.classList?.remove("changed"));
  const follow = (event) => {
    for (const element of $$("[data-bind]", event.target)) {
      const value = at(event.detail.data, element.dataset.bind);
      if (value !== undefined && value !== null) show(element, value);
    }
  };
  for (const type of ["tessera:update", "tessera:value"]) document.addEventListener(type, follow, true);
}

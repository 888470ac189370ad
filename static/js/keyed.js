// hx-ext="keyed" hx-swap="keyed": swaps rows in place by data-key. An unchanged row is not touched. While the pointer or the
// focus is in the list, the order does not change and removed rows are only shown in grey. A row with an open menu is not
// replaced.
import { $$ } from "./dom.js";
import { refreshSelection } from "./rows.js";

const sources = new WeakMap();
const inside = (row) => [row, ...$$("a, button, input, summary", row)];

function replace(old, fresh) {
  if (old.getAttribute("aria-current")) fresh.setAttribute("aria-current", "true");
  if (old.hasAttribute("tabindex")) fresh.tabIndex = old.tabIndex;
  const [was, is] = [old, fresh].map((row) => row.querySelector("input.check[name=selected]"));
  if (was?.checked && is) is.checked = true;
  const place = inside(old).indexOf(document.activeElement);
  old.replaceWith(fresh);
  if (place >= 0) (inside(fresh)[place] ?? fresh).focus({ preventScroll: true });
}

/** Update `list` to show `rows`; touches changed rows only. */
export function swapKeyed(list, rows) {
  const held = list.matches(":hover") || list.contains(document.activeElement);
  const old = new Map([...list.children].map((row) => [row.dataset.key, row]));
  const shown = rows.map((row) => {
    const html = row.outerHTML;
    const was = old.get(row.dataset.key);
    old.delete(row.dataset.key);
    if (was && (sources.get(was) === html || was.querySelector("details[open]"))) { was.classList.remove("gone"); return was; }
    if (was) replace(was, row);
    else if (held) list.append(row);
    sources.set(row, html);
    return row;
  });
  for (const row of old.values()) {
    if (held && row.dataset.key) row.classList.add("gone");
    else row.remove();
  }
  if (!held) shown.forEach((row, place) => { if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null); });
  refreshSelection();
  return shown;
}

export function startKeyed() {
  const remember = () => {
    for (const row of $$("[data-keyed] > [data-key]")) if (!sources.has(row)) sources.set(row, row.outerHTML);
  };
  remember();
  document.addEventListener("htmx:afterSettle", remember);
  window.htmx?.defineExtension("keyed", {
    isInlineSwap: (style) => style === "keyed",
    handleSwap(style, target, fragment) {
      if (style !== "keyed") return false;
      const list = fragment.querySelector("[data-keyed]") ?? fragment;
      return swapKeyed(target, [...list.children]);
    },
  });
}

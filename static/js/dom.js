// Helpers that all modules use.
export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Return whether a key press belongs to the focused element. */
export function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input:not([type=checkbox]):not([type=radio]), textarea, select"));
}

/** Listen on the document for `type` on elements that match `selector`, including swapped ones. */
export function delegate(type, selector, handler) {
  document.addEventListener(type, (event) => {
    const found = event.target instanceof Element ? event.target.closest(selector) : null;
    if (found) handler(event, found);
  });
}

/** Run `visit` for every match, now and in swapped content. */
export function whenever(selector, visit) {
  const look = (root) => {
    if (root instanceof Element && root.matches(selector)) visit(root);
    $$(selector, root).forEach(visit);
  };
  look(document);
  document.addEventListener("htmx:afterSettle", (event) => look(event.detail?.elt ?? event.target));
}

/** An icon of the sprite as an SVG element. */
export function icon(name, size = "") {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("class", `i ${size}`.trim());
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(space, "use");
  use.setAttribute("href", `${document.body.dataset.icons}#${name}`);
  svg.append(use);
  return svg;
}

/** POST values with the CSRF token; returns the response. */
export function post(url, values = {}) {
  return fetch(url, {
    method: "POST",
    credentials: "same-origin",
    headers: { "X-CSRFToken": document.body.dataset.csrf ?? "" },
    body: new URLSearchParams(values),
  });
}

/** GET JSON from REST; errors have the status. */
export async function getJson(url, options = {}) {
  const response = await fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" }, ...options });
  if (!response.ok) {
    const error = new Error(`${response.status} from ${url}`);
    error.status = response.status;
    error.body = await response.json().catch(() => null);
    throw error;
  }
  return response.json();
}

export const debounce = (wait, call) => {
  let timer;
  const later = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), wait);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
};

/** Return the value at a dotted path, or undefined. */
export const at = (value, path) => path.split(".").reduce((inner, key) => inner?.[key], value);

/** A preference stored in this browser; storage that is not available is not an error. */
export const memory = {
  get(key) {
    try { return localStorage.getItem(`tessera.${key}`); } catch { return null; }
  },
  set(key, value) {
    try { localStorage.setItem(`tessera.${key}`, value); } catch { /* private mode */ }
  },
};

let words = null;

/** Return `text` in the language of the page with each {name} replaced. The server renders the messages into the page. */
export function translate(text, facts = {}) {
  words ??= JSON.parse(document.getElementById("words")?.textContent ?? "{}");
  return (words[text] ?? text).replace(/\{(\w+)\}/g, (whole, name) => String(facts[name] ?? whole));
}

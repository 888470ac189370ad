// Device map: the colour mode changes in place and is stored in the address. One tile is in the tab order; arrow keys move.
import { $$, delegate } from "./dom.js";

function rove(map) {
  const tiles = $$("a.tile", map);
  tiles.forEach((tile, place) => { tile.tabIndex = place === 0 ? 0 : -1; });
}

export function startMap(map) {
  if (map.dataset.started) return;
  map.dataset.started = "yes";
  rove(map);
  map.addEventListener("focusin", (event) => {
    if (!event.target.matches("a.tile")) return;
    $$('a.tile[tabindex="0"]', map).forEach((tile) => { tile.tabIndex = -1; });
    event.target.tabIndex = 0;
  });
}

export function switchColour() {
  delegate("click", "[data-colour-by]", (event, link) => {
    const card = link.closest("[data-map-card]") ?? document;
    for (const place of $$("[data-colour]", card)) place.dataset.colour = link.dataset.colourBy;
    if (card instanceof HTMLElement && card.dataset.colour !== undefined) card.dataset.colour = link.dataset.colourBy;
    for (const other of $$("[data-colour-by]", card)) {
      if (other === link) other.setAttribute("aria-current", "true");
      else other.removeAttribute("aria-current");
    }
    const url = new URL(location.href);
    url.searchParams.set("colour", link.dataset.colourBy);
    history.replaceState(history.state, "", url);
    event.preventDefault();
  });
}

// Sizes with which a waiting job could start: the slider hides those that are smaller than the reader accepts.
import { $, $$, translate } from "./dom.js";

export function startSizes(box) {
  if (box.dataset.started) return;
  box.dataset.started = "yes";
  const rows = $$("[data-size]", box);
  const sizes = [...new Set(rows.map((row) => Number(row.dataset.size)))].sort((a, b) => a - b);
  const slider = $("input[type=range]", box);
  const show = () => {
    const least = sizes[Number(slider.value)];
    rows.forEach((row) => { row.hidden = Number(row.dataset.size) < least; });
    const text = translate("{number} or more devices", { number: least });
    slider.setAttribute("aria-valuetext", text);
    $("output", box).value = text;
  };
  slider.max = String(sizes.length - 1);
  slider.addEventListener("input", show);
  $(".size-slider", box).hidden = sizes.length < 2;
  show();
}

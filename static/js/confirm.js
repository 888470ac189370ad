// The confirm dialog. Set these attributes on a form, or on an element with hx-post:
//   data-confirm="Stop 3 jobs?"  data-confirm-body="They save a checkpoint …"  data-confirm-verb="Stop 3 jobs"
//   data-confirm-safe="Keep running"  data-confirm-reason (asks for one)  data-confirm-type="name" (must be typed)
//   data-confirm-list='[["detector-sweep-03", "2438"]]'
import { $, translate } from "./dom.js";

let settle = null;
let opener = null;
const passed = new WeakSet();

const dialog = () => $("#confirm");

function fill(box, options) {
  $("#confirm-title", box).textContent = options.confirm;
  $("#confirm-body", box).textContent = options.confirmBody ?? "";
  $("#confirm-body", box).hidden = !options.confirmBody;
  $("[data-confirm-yes]", box).textContent = options.confirmVerb ?? translate("Continue");
  $("[data-confirm-no]", box).textContent = options.confirmSafe ?? translate("Cancel");
  const list = $("[data-confirm-list]", box);
  const rows = options.confirmList ? JSON.parse(options.confirmList) : [];
  list.hidden = rows.length === 0;
  list.replaceChildren(...rows.map(([name, detail]) => {
    const item = document.createElement("li");
    const left = Object.assign(document.createElement("span"), { className: "name", textContent: name });
    const right = Object.assign(document.createElement("span"), { className: "t3 s", textContent: detail ?? "" });
    item.append(left, right);
    return item;
  }));
  const reason = $("[data-confirm-reason]", box);
  reason.hidden = options.confirmReason === undefined;
  $("input", reason).value = "";
  const type = $("[data-confirm-type]", box);
  type.hidden = !options.confirmType;
  $("input", type).value = "";
  $("[data-confirm-word]", box).textContent = options.confirmType ?? "";
  check(box);
}

function missing(box) {
  const reason = $("[data-confirm-reason]", box);
  const type = $("[data-confirm-type]", box);
  if (!reason.hidden && !$("input", reason).value.trim()) return $("input", reason);
  if (!type.hidden && $("input", type).value !== $("[data-confirm-word]", box).textContent) return $("input", type);
  return null;
}

function check(box) {
  $("[data-confirm-yes]", box).setAttribute("aria-disabled", String(missing(box) !== null));
}

/** Show the dialog; resolves to {reason} if confirmed, to null otherwise. */
export function ask(options) {
  const box = dialog();
  opener = document.activeElement;
  fill(box, options);
  box.showModal();
  $("[data-confirm-no]", box).focus();
  return new Promise((resolve) => { settle = resolve; });
}

function close(answer) {
  dialog().close();
  settle?.(answer);
  settle = null;
  const back = opener?.isConnected ? opener : opener?.id && document.getElementById(opener.id);
  if (back) back.focus();
}

function accept() {
  const box = dialog();
  const wanting = missing(box);
  if (wanting) wanting.focus();
  else close({ reason: $("[data-confirm-reason] input", box).value.trim() });
}

function putReason(form, reason) {
  if (!reason) return;
  let field = form.elements.namedItem("reason");
  if (!field) {
    field = Object.assign(document.createElement("input"), { type: "hidden", name: "reason" });
    form.append(field);
  }
  field.value = reason;
}

// A live update may have replaced the form or the button while the dialog was open; the confirmed request is sent anyway.
function revive(lost, home) {
  lost.hidden = true;
  home.append(lost);
}

export function startConfirm() {
  const box = dialog();
  if (!box) return;
  $("[data-confirm-yes]", box).addEventListener("click", accept);
  $("[data-confirm-no]", box).addEventListener("click", () => close(null));
  box.addEventListener("cancel", (event) => { event.preventDefault(); close(null); });
  box.addEventListener("input", () => check(box));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target instanceof HTMLInputElement) { event.preventDefault(); accept(); }
  });

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const options = event.submitter?.dataset.confirm ? event.submitter.dataset : form.dataset;
    if (!options.confirm || passed.delete(form) || isHtmx(form)) return;
    event.preventDefault();
    const answer = await ask(options);
    if (!answer) return;
    putReason(form, answer.reason);
    if (!form.isConnected) revive(form, document.body);
    if (event.submitter && !event.submitter.isConnected) revive(event.submitter, form);
    passed.add(form);
    form.requestSubmit(event.submitter ?? undefined);
  }, true);

  document.addEventListener("htmx:confirm", async (event) => {
    const options = event.target.dataset;
    if (!options?.confirm) return;
    event.preventDefault();
    const answer = await ask(options);
    if (!answer) return;
    if (event.target instanceof HTMLFormElement) putReason(event.target, answer.reason);
    else if (answer.reason) event.target.setAttribute("hx-vals", JSON.stringify({ reason: answer.reason }));
    event.detail.issueRequest(true);
  });
}

const isHtmx = (form) => form.matches("[hx-post], [hx-put], [hx-patch], [hx-delete], [data-hx-post]");

// Submit page: form, YAML and preview. Form and YAML are two views of one job. 400 ms after the last key press, the edited
// pane is sent to the server. The response fills the other pane, marks errors at field, line and panel, and updates the
// preview. Response: {yaml, fields?: {name: value}, errors: [{field, message, remedy?, use?, line?}], summary, plan, verdict,
// fields_html?, is_kept?}. `use` is a valid value; `plan` and `fields_html` are HTML rendered by the templates of the page.
// YAML that cannot be parsed has no fields: the form retains the last parsed values (`is_kept`) until it can be parsed.
import { $, $$, debounce, icon, translate } from "./dom.js";

const WAIT_MS = 400;

const counted = ({ length: number }) => (number === 1 ? translate("{number} error", { number }) : translate("{number} errors", { number }));

// Return whether a field differs from the value that the server sent.
function isTouched(field) {
  if (field instanceof HTMLSelectElement) {
    const chosen = [...field.options].filter((option) => option.defaultSelected);
    return chosen.length ? chosen.some((option) => !option.selected) : field.selectedIndex > 0;
  }
  if (["checkbox", "radio"].includes(field.type)) return field.checked !== field.defaultChecked;
  if (!("defaultValue" in field)) return false;
  // A one-line field drops the line breaks of the received text.
  const sent = field instanceof HTMLInputElement ? field.defaultValue.replace(/[\r\n]/g, "") : field.defaultValue;
  return field.value !== sent;
}

class Submit {
  constructor(root) {
    this.root = root;
    this.form = $("form[data-submit-form]", root);
    this.text = $("textarea[data-submit-yaml]", root);
    this.numbers = $(".yaml .numbers", root);
    this.plan = $("[data-submit-plan]", root);
    this.verdict = $("[data-submit-verdict]", root);
    this.button = $("[data-submit-send]", root);
    this.source = this.typedEarlier() ?? root.dataset.source ?? "yaml";
    this.errors = [];
    this.summary = "";
    this.check = debounce(WAIT_MS, () => this.ask());
    this.listen();
    this.number([]);
    this.ask();
  }

  // The pane that was edited before this script was loaded; the first check must not overwrite it.
  typedEarlier() {
    if (isTouched(this.text)) return "yaml";
    return [...this.form.elements].some(isTouched) ? "form" : null;
  }

  listen() {
    this.form.addEventListener("input", (event) => { if (event.target.type !== "file") this.edited("form"); });
    this.form.addEventListener("change", (event) => {
      if (!event.target.matches("[data-submit-upload]")) this.edited("form");
      else if (event.target.files.length) this.upload(event.target);
    });
    this.form.addEventListener("submit", (event) => {
      // A button with its own address saves the text as a template.
      if (event.submitter?.hasAttribute("formaction")) return;
      event.preventDefault();
      if (event.submitter?.matches("[data-submit-change]")) this.ask(event.submitter.value);
      else this.send();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !event.target.matches("[data-new-secret]")) return;
      event.preventDefault();
      this.ask(`add-secret:${event.target.dataset.newSecret}`);
    });
    // Without this, Enter would activate the first button of the form, which only checks the job.
    $("#template-name", this.root)?.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      $("button[formaction]", event.target.parentElement).click();
    });
    addEventListener("pageshow", (event) => { if (event.persisted) this.mark(); });
    this.text.addEventListener("input", () => { this.number([]); this.edited("yaml"); });
    this.text.addEventListener("scroll", () => { this.numbers.scrollTop = this.text.scrollTop; });
    this.text.addEventListener("keydown", (event) => this.indent(event));
    $("[data-copy-yaml]", this.root)?.addEventListener("click", (event) => { event.currentTarget.dataset.copy = this.text.value; event.currentTarget.dataset.copyLabel = "YAML"; });
    this.root.addEventListener("click", (event) => {
      const use = event.target.closest("[data-use]");
      if (use) this.use(JSON.parse(use.dataset.use));
      const pane = event.target.closest("[data-show-pane]");
      if (pane) this.show(pane.dataset.showPane);
    });
    document.addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || document.querySelector("dialog[open]")) return;
      if (event.key === "Enter") { event.preventDefault(); this.send(); }
      if (event.key === ".") { event.preventDefault(); this.show(document.activeElement === this.text ? "form" : "yaml"); }
    });
  }

  // Tab leaves the field, as everywhere; Enter keeps the indentation of the line.
  indent(event) {
    if (event.key !== "Enter" || event.ctrlKey || event.metaKey) return;
    const before = this.text.value.slice(0, this.text.selectionStart);
    const line = before.slice(before.lastIndexOf("\n") + 1);
    const space = line.match(/^\s*/)[0] + (line.trimEnd().endsWith(":") ? "  " : "");
    if (!space) return;
    event.preventDefault();
    this.text.setRangeText(`\n${space}`, this.text.selectionStart, this.text.selectionEnd, "end");
    this.text.dispatchEvent(new Event("input", { bubbles: true }));
  }

  edited(source) {
    this.source = source;
    this.plan.setAttribute("aria-busy", "true");
    this.check();
  }

  // The archive is uploaded once, after its selection; the document then contains its digest.
  async upload(field) {
    this.source = "form";
    const [file] = field.files, most = Number(field.dataset.mostBytes);
    if (file.size > most) {
      this.refuse([{ field: "source.archive", message: translate("{name}: {size} B; the limit is {most} B.", { name: file.name, size: file.size.toLocaleString("en"), most: most.toLocaleString("en") }), remedy: translate("Exclude data and environments; fetch them in the job.") }]);
    } else await this.ask("upload");
    field.value = "";
  }

  // If the document could not be parsed, the form does not change.
  refuse(errors) {
    this.errors = errors;
    this.summary = counted(errors);
    this.mark();
    this.plan.removeAttribute("aria-busy");
  }

  async ask(change = "") {
    // A pending check would only cancel this one.
    this.check.cancel();
    this.request?.abort();
    const request = this.request = new AbortController();
    const body = new FormData(this.form);
    body.set("source", this.source);
    body.set("yaml", this.text.value);
    if (change) body.set("change", change);
    if (change !== "upload") body.delete("upload");
    this.plan.setAttribute("aria-busy", "true");
    try {
      const response = await fetch(this.root.dataset.checkUrl, {
        method: "POST", body, signal: request.signal, credentials: "same-origin",
        headers: { "X-CSRFToken": document.body.dataset.csrf },
      });
      if (response.status === 413) { this.refuse((await response.json()).errors); return; }
      if (!response.ok) throw new Error(String(response.status));
      this.take(await response.json(), Boolean(change));
    } catch (error) {
      if (error.name !== "AbortError") this.silent();
    }
  }

  silent() {
    this.plan.removeAttribute("aria-busy");
    const place = $("[data-submit-trouble]", this.root);
    if (place) place.hidden = false;
  }

  take(answer, changed = false) {
    const trouble = $("[data-submit-trouble]", this.root);
    if (trouble) trouble.hidden = true;
    if (answer.fields_html) this.reshape(answer.fields_html);
    const toText = changed || (this.source === "form" && document.activeElement !== this.text);
    if (toText && typeof answer.yaml === "string" && this.text.value !== answer.yaml) this.text.value = answer.yaml;
    if (changed || this.source === "yaml") this.fill(answer.fields ?? {});
    this.keep(Boolean(answer.is_kept));
    this.errors = answer.errors ?? [];
    this.summary = answer.summary;
    this.mark();
    if (typeof answer.plan === "string") $("[data-submit-plan-body]", this.plan).innerHTML = answer.plan;
    this.plan.removeAttribute("aria-busy");
    const words = this.errors.length ? counted(this.errors) : answer.verdict ?? "";
    if (this.verdict && this.verdict.textContent !== words) this.verdict.textContent = words;
  }

  keep(isKept) {
    $("[data-submit-kept]", this.root).hidden = !isKept;
    $("[data-submit-fields]", this.form).inert = isKept;
  }

  // Another number of roles or secrets changes the fields; the focused field retains focus and caret.
  reshape(html) {
    const place = $("[data-submit-fields]", this.form);
    const name = place.contains(document.activeElement) ? document.activeElement.name : null;
    const secrets = new Map($$('input[type="password"]', place).map((field) => [field.name, field.value]));
    const open = new Set($$("details[open]", place).map((part) => part.dataset.more));
    place.innerHTML = html;
    // The server never sends a secret back; the typed value remains in the field.
    for (const part of $$("details[data-more]", place)) part.open ||= open.has(part.dataset.more);
    if (name) this.form.elements.namedItem(name)?.focus?.();
    for (const field of $$('input[type="password"]', place)) {
      if (secrets.has(field.name)) field.value = secrets.get(field.name);
      else if (name === "change" || name?.startsWith("secret_name.")) field.focus();
    }
  }

  fill(fields) {
    for (const [name, value] of Object.entries(fields)) this.put(name, value, false);
  }

  put(name, value, force) {
    const found = this.form.elements.namedItem(name);
    if (!found) return;
    if (found instanceof RadioNodeList) { found.value = String(value); return; }
    if (found === document.activeElement && !force) return;
    if (found.type === "checkbox") found.checked = Boolean(value);
    else found.value = value ?? "";
  }

  use(changes) {
    for (const [name, value] of Object.entries(changes)) this.put(name, value, true);
    this.source = "form";
    this.ask();
  }

  mark() {
    for (const old of $$("[data-live-error]", this.form)) old.remove();
    for (const wrong of $$('[aria-invalid="true"]', this.form)) wrong.removeAttribute("aria-invalid");
    for (const error of this.errors) this.markField(error);
    this.number(this.errors.map((error) => error.line).filter(Boolean));
    const summary = $("[data-yaml-summary]", this.root);
    if (summary && this.summary) summary.textContent = this.summary;
    summary?.classList.toggle("bad-text", this.errors.length > 0);
    this.button.setAttribute("aria-disabled", String(this.errors.length > 0));
  }

  markField(error) {
    const found = this.form.elements.namedItem(error.field);
    const field = found instanceof RadioNodeList ? found[0] : found;
    const group = field?.closest(".trio, .pair");
    const home = group ?? field?.closest(".field") ?? $("[data-submit-other-errors]", this.form);
    if (!home) return;
    field?.setAttribute("aria-invalid", "true");
    const line = Object.assign(document.createElement("p"), { className: "err", id: `error-${error.field}` });
    line.dataset.liveError = "";
    const words = document.createElement("span");
    const name = group ? field.labels?.[0]?.textContent : field ? "" : error.field;
    if (name) words.append(Object.assign(document.createElement("b"), { textContent: name }), " ");
    words.append(error.message);
    if (error.remedy) words.append(` ${error.remedy}`);
    if (error.use !== undefined && field) {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "link", textContent: translate("Use {value}", { value: error.use }) });
      button.dataset.use = JSON.stringify({ [error.field]: error.use });
      words.append(" ", button);
    }
    line.append(icon("failed"), words);
    home.append(line);
    field?.setAttribute("aria-describedby", `${field.id}-hint error-${error.field}`);
  }

  number(wrong) {
    const count = this.text.value.split("\n").length;
    const rows = Array.from({ length: count }, (_each, place) => {
      const row = Object.assign(document.createElement("span"), { textContent: String(place + 1) });
      if (wrong.includes(place + 1)) row.className = "bad";
      return row;
    });
    this.numbers.replaceChildren(...rows);
    this.numbers.scrollTop = this.text.scrollTop;
  }

  show(pane) {
    this.root.dataset.pane = pane;
    for (const button of $$("[data-show-pane]", this.root)) button.setAttribute("aria-pressed", String(button.dataset.showPane === pane));
    if (pane === "yaml") this.text.focus();
    else $("input:not([type=hidden]), select, textarea", this.form)?.focus();
  }

  send() {
    if (this.button.getAttribute("aria-disabled") === "true") {
      ($('[aria-invalid="true"]', this.form) ?? this.text).focus();
      return;
    }
    this.button.setAttribute("aria-disabled", "true");
    this.form.elements.namedItem("source").value = this.source;
    this.form.submit();
  }
}

export function startSubmit(root) {
  if (root.dataset.started) return;
  root.dataset.started = "yes";
  new Submit(root);
}

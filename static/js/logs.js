// Log viewer. The loaded part is one range [start, end) of bytes without gaps, and the footer shows it. If a message does not
// continue the range, the viewer fetches the bytes between. Only text whose offset equals the end is appended.
import { $, $$, getJson, translate } from "./dom.js";
import { lookForTopics } from "./live.js";

const CHUNK = 65_536;
const TAIL = 4 * CHUNK;
const MOST_LINES = 8000;
const MOST_SPANS = 200;
const RETRY_MS = 3000;
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]/g;
const LAST_RETURN = /\r(?:\x1b\[[0-9;?]*[ -/]*[@-~])*$/;
const ERROR = /\b(error|traceback|exception|fatal|critical|out of memory|killed)\b/i;
const WARNING = /\b(warn|warning|deprecat\w+)\b/i;
const OWN = /^\[tessera\]/;

const number = new Intl.NumberFormat(document.documentElement.lang || "en");

function kind(text) {
  if (OWN.test(text)) return "sys";
  if (ERROR.test(text)) return "bad";
  return WARNING.test(text) ? "warn" : "";
}

// As in a terminal, after a carriage return only the last text of a line remains.
function lastText(text) {
  const trimmed = text.replace(LAST_RETURN, "");
  return trimmed.slice(trimmed.lastIndexOf("\r") + 1);
}

// Returns the class of a text after an SGR sequence such as "1;31"; other escapes change nothing.
function styled(style, escape) {
  if (!escape.endsWith("m") || !/^[0-9;]*$/.test(escape.slice(2, -1))) return style;
  const codes = escape.slice(2, -1).split(";").map(Number);
  let { bold, colour } = style;
  for (let place = 0; place < codes.length; place += 1) {
    const code = codes[place];
    if (code === 0) { bold = false; colour = ""; }
    else if (code === 1) bold = true;
    else if (code === 22) bold = false;
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = `sgr${code % 10}`;
    else if (code === 39) colour = "";
    // Colours of 256 or of RGB values, which are not shown, with their parameters.
    else if (code === 38 || code === 48) place += codes[place + 1] === 5 ? 2 : 4;
  }
  return { bold, colour };
}

// Appends the text with its terminal colours; at most MOST_SPANS parts of a line have a style.
function paint(target, text) {
  let style = { bold: false, colour: "" };
  let at = 0;
  const put = (end) => {
    const part = text.slice(at, end).replace(ESCAPES, "");
    if (!part) return;
    const names = [style.colour, style.bold ? "bold" : ""].filter(Boolean).join(" ");
    if (!names || target.childNodes.length >= MOST_SPANS) target.append(part);
    else target.append(Object.assign(document.createElement("span"), { className: names, textContent: part }));
  };
  for (const found of text.matchAll(ESCAPES)) {
    put(found.index);
    style = styled(style, found[0]);
    at = found.index + found[0].length;
    if (target.childNodes.length >= MOST_SPANS) break;
  }
  put(text.length);
}

class LogView {
  constructor(card) {
    this.card = card;
    this.box = $(".log", card);
    this.list = $("ol", card);
    this.footer = $("[data-log-summary]", card);
    this.follow = $("[data-log-follow]", card);
    this.earlier = $("[data-log-earlier]", card);
    this.following = true;
    this.unseen = 0;
    this.at = null;
    this.listen();
    this.open(card.dataset.role, card.dataset.rank);
  }

  listen() {
    this.box.addEventListener("scroll", () => this.scrolled());
    this.follow.addEventListener("click", () => this.setFollowing(!this.following));
    this.earlier.addEventListener("click", () => this.loadEarlier());
    $("[data-log-wrap]", this.card).addEventListener("click", (event) => {
      const on = this.box.classList.toggle("wrap");
      event.currentTarget.setAttribute("aria-pressed", String(on));
    });
    $("[data-log-next]", this.card).addEventListener("click", () => this.jump(1));
    $("[data-log-previous]", this.card).addEventListener("click", () => this.jump(-1));
    $("[data-log-find]", this.card)?.addEventListener("input", (event) => this.find(event.target.value));
    $("[data-log-find]", this.card)?.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.jump(event.shiftKey ? -1 : 1, ".found"); }
    });
    $("[data-log-stream]", this.card)?.addEventListener("change", (event) => {
      const cut = event.target.value.lastIndexOf(":");
      this.open(event.target.value.slice(0, cut), event.target.value.slice(cut + 1));
    });
    this.box.addEventListener("tessera:update", (event) => this.message(event.detail.data));
    this.box.addEventListener("tessera:refetch", () => this.catchUp());
  }

  async open(role, rank) {
    this.stream = { role, rank };
    this.start = this.end = this.size = 0;
    this.firstLine = 1;
    this.openLine = this.cut = "";
    this.openRow = this.cutRow = null;
    this.cutFirst = this.trimmed = false;
    this.busy = null;
    this.list.replaceChildren();
    this.footer.textContent = translate("Loading the log …");
    this.box.dataset.topic = `log:${this.card.dataset.job}:${role}:${rank}`;
    this.box.setAttribute("aria-label", translate("Log of {role} {rank}", { role, rank }));
    lookForTopics();
    await this.catchUp(true);
  }

  read(offset, limit = CHUNK) {
    const query = new URLSearchParams({ ...this.stream, offset, limit });
    return getJson(`${this.card.dataset.url}?${query}`);
  }

  // Fetch up to the end. Only one fetch runs at a time; a second call waits for it and checks again. One waiting call is
  // enough: if responses are slower than messages, waiting calls would accumulate.
  catchUp(first = false) {
    const stream = this.stream;
    if (this.next === stream) return this.busy;
    this.next = stream;
    const before = this.busy ?? Promise.resolve();
    this.busy = before.then(() => {
      if (stream !== this.stream) return undefined;
      this.next = null;
      return this.walk(first);
    });
    return this.busy;
  }

  async walk(first) {
    const own = this.walking = {};
    try {
      if (first) await this.seekTail();
      for (;;) {
        const stream = this.stream;
        const part = await this.read(this.end);
        if (stream !== this.stream) return;
        if (this.isAnother(part)) { this.restart(); return; }
        if (this.accept(part) === 0) break;
      }
      this.prove();
    } catch (error) {
      if (error.status === 404) this.footer.textContent = translate("No output yet.");
      else {
        const codes = ["log-elsewhere", "log-unreadable"];
        const elsewhere = codes.includes(error.body?.code) && error.body.errors[0];
        this.footer.textContent = elsewhere
          ? `${elsewhere.message} ${elsewhere.remedy}`
          : translate("The log is not available. Retrying.");
        setTimeout(() => this.catchUp(first && this.end === 0), RETRY_MS);
      }
    } finally {
      if (this.walking === own) this.walking = null;
    }
  }

  async seekTail() {
    const head = await this.read(0, 1);
    this.size = typeof head.size === "number" ? head.size : 0;
    if (this.size <= TAIL) return;
    this.start = this.end = this.size - TAIL;
    this.firstLine = 0;
    this.cutFirst = true;
  }

  // Append the text of [end, next_offset); returns the number of bytes.
  accept({ text, next_offset: next, size, offset }) {
    const from = offset ?? this.end;
    if (typeof size === "number") this.size = Math.max(this.size, size);
    if (from > this.end && this.list.childElementCount) this.missing(from - this.end);
    if (from > this.end && this.start === this.end) this.start = from;
    const came = next - this.end;
    if (came <= 0 || !text) return 0;
    this.end = next;
    this.size = Math.max(this.size, next);
    this.append(text);
    return came;
  }

  message(data) {
    if (!data || typeof data.next_offset !== "number") return this.catchUp();
    if (this.isAnother(data)) return this.restart();
    this.size = Math.max(this.size, data.next_offset);
    if (data.next_offset <= this.end) return this.prove();
    // A fetch in progress may contain this text already, which would then be shown twice.
    if (this.walking || data.offset !== this.end || !data.text) return this.catchUp();
    this.accept(data);
    return this.prove();
  }

  // Each attempt has its own log, which starts at offset 0.
  isAnother({ attempt }) {
    const other = Boolean(attempt && this.attempt && attempt !== this.attempt);
    this.attempt ||= attempt;
    return other;
  }

  restart() {
    this.attempt = 0;
    this.open(this.stream.role, this.stream.rank);
  }

  // Deleted bytes are shown as a row.
  missing(bytes) {
    const row = document.createElement("li");
    row.className = "missing";
    row.textContent = translate("{bytes} B expired", { bytes: number.format(bytes) });
    this.list.append(row);
  }

  append(text) {
    const lines = (this.openLine + text).split("\n");
    if (this.cutFirst) {
      // The end of a line whose start is not loaded yet: shown after the start is loaded.
      this.cut += lines.shift();
      if (!lines.length) return this.showCut();
      this.cutFirst = false;
    }
    if (this.openRow) { this.openRow.remove(); this.openRow = null; }
    this.openLine = lines.pop() ?? "";
    const rows = document.createDocumentFragment();
    for (const line of lines) rows.append(this.row(line));
    if (this.openLine) { this.openRow = this.row(this.openLine); rows.append(this.openRow); }
    this.list.append(rows);
    this.trim();
    if (this.following) this.toEnd();
    else { this.unseen += lines.length; this.showFollow(); }
    this.countErrors();
  }

  // While this line continues, as a progress bar may for hours, nothing else can be shown.
  showCut() {
    const row = this.row(this.cut);
    if (this.cutRow) this.cutRow.replaceWith(row);
    else this.list.append(row);
    this.cutRow = row;
    if (this.following) this.toEnd();
  }

  row(line) {
    const text = lastText(line);
    const row = document.createElement("li");
    row.className = kind(text.replace(ESCAPES, ""));
    const place = Object.assign(document.createElement("span"), { className: "ln" });
    const shown = Object.assign(document.createElement("span"), { className: "tx" });
    if (text.includes("\x1b")) paint(shown, text);
    else shown.textContent = text;
    row.append(place, shown);
    return row;
  }

  trim() {
    const over = this.list.childElementCount - MOST_LINES;
    if (over <= 0 || !this.following) return;
    for (let gone = 0; gone < over; gone += 1) this.list.firstElementChild.remove();
    if (this.firstLine) this.firstLine += over;
    this.trimmed = true;
  }

  // One fetch at a time, or the same range would be shown twice.
  async loadEarlier() {
    if (this.reading || this.start === 0) return;
    this.reading = true;
    const stream = this.stream;
    try {
      const from = Math.max(0, this.start - TAIL);
      const text = await this.stretch(from, this.start);
      if (stream === this.stream) this.prepend(from, text);
    } catch {
      this.footer.textContent = translate("The log is not available. Retrying.");
      setTimeout(() => { if (stream === this.stream) this.loadEarlier(); }, RETRY_MS);
    } finally {
      this.reading = false;
    }
  }

  async stretch(from, to) {
    let text = "";
    for (let place = from; place < to;) {
      const part = await this.read(place, Math.min(CHUNK, to - place));
      if (part.next_offset <= place) break;
      text += part.text;
      place = part.next_offset;
    }
    return text;
  }

  prepend(from, text) {
    const anchor = this.box.scrollHeight - this.box.scrollTop;
    const lines = (text + this.cut).split("\n");
    if (this.cutRow) { this.cutRow.remove(); this.cutRow = null; }
    this.cut = from > 0 ? lines.shift() : "";
    if (this.cutFirst && !lines.length) this.showCut();
    else if (this.cutFirst) {
      this.cutFirst = false;
      this.openLine = lines.pop();
      if (this.openLine) { this.openRow = this.row(this.openLine); this.list.prepend(this.openRow); }
    }
    this.list.prepend(...lines.map((line) => this.row(line)));
    this.start = from;
    if (from === 0) this.firstLine = 1;
    this.box.scrollTop = this.box.scrollHeight - anchor;
    this.prove();
  }

  // Number the lines if the number of the first line is known, and update the footer.
  prove() {
    const rows = this.list.children;
    if (this.firstLine) {
      for (let place = rows.length - 1; place >= 0; place -= 1) {
        const span = rows[place].firstElementChild;
        const text = String(this.firstLine + place);
        if (!span || span.textContent === text) break;
        span.textContent = text;
      }
    }
    this.earlier.hidden = this.start === 0 || this.trimmed;
    const whole = this.end >= this.size ? translate("no gaps") : translate("fetching the rest");
    if (!rows.length && this.size === 0) this.footer.textContent = translate("No output yet.");
    else if (this.firstLine) this.footer.textContent = translate("Lines {first} – {last}, {end} of {size} bytes, {whole}", { first: number.format(this.firstLine), last: number.format(this.firstLine + rows.length - 1), end: number.format(this.end), size: number.format(this.size), whole });
    else this.footer.textContent = translate("Bytes {start} – {end} of {size}, {whole}", { start: number.format(this.start), end: number.format(this.end), size: number.format(this.size), whole });
  }

  scrolled() {
    const below = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight;
    if (this.following && below > 24 && this.box.scrollTop < (this.lastTop ?? 0)) this.setFollowing(false);
    else if (!this.following && below < 4) this.setFollowing(true);
    this.lastTop = this.box.scrollTop;
  }

  setFollowing(on) {
    this.following = on;
    if (on) { this.unseen = 0; this.toEnd(); }
    this.showFollow();
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.lastTop = this.box.scrollTop;
  }

  showFollow() {
    this.follow.classList.toggle("on", this.following);
    this.follow.setAttribute("aria-pressed", String(this.following));
    const text = this.unseen ? translate(this.unseen === 1 ? "{number} new line" : "{number} new lines", { number: number.format(this.unseen) }) : translate("Follow");
    $("b", this.follow).textContent = this.following ? translate("Following") : text;
  }

  countErrors() {
    const found = this.list.querySelectorAll(".bad, .warn").length;
    const button = $("[data-log-next]", this.card);
    button.hidden = found === 0;
    $("[data-log-errors]", button).textContent = translate("Next error ({number})", { number: number.format(found) });
  }

  jump(step, selector = ".bad, .warn") {
    const hits = $$(selector, this.list);
    if (!hits.length) return;
    const here = hits.indexOf(this.at);
    const next = here < 0 ? (step > 0 ? 0 : hits.length - 1) : (here + step + hits.length) % hits.length;
    this.at?.classList.remove("at");
    this.at = hits[next];
    this.at.classList.add("at");
    this.setFollowing(false);
    this.at.scrollIntoView({ block: "center" });
  }

  find(words) {
    const wanted = words.trim().toLowerCase();
    for (const row of this.list.children) row.classList.toggle("found", Boolean(wanted) && row.textContent.toLowerCase().includes(wanted));
    if (wanted) { this.at = null; this.jump(1, ".found"); }
  }
}

export function startLog(card) {
  if (card.dataset.started) return;
  card.dataset.started = "yes";
  new LogView(card);
}

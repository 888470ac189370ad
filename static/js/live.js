// One websocket per tab. Elements name their topic with data-topic and the address of the same data in REST with data-twin.
// Every message is dispatched on the document as `tessera:<topic>` and on these elements as `tessera:update`, with the
// detail {topic, version, data}. REST is the source of truth: after each (re)connect the REST resources are fetched, and
// without a socket they are polled. Messages of whole-page topics have a pace (paced.js).
import { $, $$, getJson, translate } from "./dom.js";
import { isPaced, nameVersions, take } from "./paced.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
const POLL_MS = 5000;
const POLL_REST = 4;
const POLL_AFTER_FAILURES = 3;
const HIDDEN_PAUSE_MS = 60_000;

const wanted = new Set();
let socket = null;
let wasOpen = false;
let failures = 0;
let lastWord = 0;
let retryAt = 0;
let retryTimer = null;
let pollTimer = null;
let pollWait = POLL_MS;
let hiddenTimer = null;
let paused = false;

const address = () => `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live/`;
const staleAfterMs = () => Math.max(15_000, 1500 * Number(document.body.dataset.roundSeconds || 10));

function badge() {
  const element = $("[data-live]");
  if (!element) return;
  let state = "live";
  let words = translate("Live");
  const silent = Math.round((performance.now() - lastWord) / 1000);
  if (paused) [state, words] = ["paused", translate("Paused")];
  else if (socket?.readyState !== WebSocket.OPEN) {
    const wait = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
    if (failures === 0) [state, words] = ["connecting", translate("Connecting")];
    else if (pollTimer && lastWord && silent < 3 * pollWait / 1000) [state, words] = ["stale", translate("Polled {seconds} s ago", { seconds: silent })];
    else [state, words] = ["offline", translate("Offline")];
    element.title = failures ? translate("Retry in {seconds} s", { seconds: wait }) : "";
  } else if (silent * 1000 > staleAfterMs()) [state, words] = ["stale", translate("Stale {seconds} s", { seconds: silent })];
  else element.title = translate("Updates arrive as they happen");
  element.dataset.state = state;
  if (element.textContent !== words) element.textContent = words;
}

function dispatch(topic, version, data) {
  const detail = { topic, version, data };
  document.dispatchEvent(new CustomEvent(`tessera:${topic}`, { detail }));
  for (const element of $$(`[data-topic="${CSS.escape(topic)}"]`)) element.dispatchEvent(new CustomEvent("tessera:update", { detail }));
}

function receive(event) {
  lastWord = performance.now();
  let message;
  try { message = JSON.parse(event.data); } catch { return; }
  const { topic, version, data } = message;
  if (topic === "confirmed") catchUp(new Set(data?.topics));
  if (!topic || topic === "confirmed") {
    badge();
    return;
  }
  if (message.pace !== undefined) take(message);
  // In the order of arrival: versions are times of several clocks, and a clock may be set back.
  else dispatch(topic, version, data);
  badge();
}

async function fetchTwin(element) {
  const { topic, twin } = element.dataset;
  if (!twin) return;
  const data = await getJson(twin);
  lastWord = performance.now();
  const detail = { topic, version: null, data };
  document.dispatchEvent(new CustomEvent(`tessera:${topic}`, { detail }));
  element.dispatchEvent(new CustomEvent("tessera:update", { detail }));
}

// From here on all messages arrive; changes between the rendering of the page and now must be fetched.
function catchUp(topics) {
  for (const element of $$("[data-topic]")) {
    const { topic } = element.dataset;
    if (!topics.has(topic) || topic === "rounds" || isPaced(topic)) continue;
    if (element.dataset.twin) fetchTwin(element).catch(() => {});
    else element.dispatchEvent(new CustomEvent("tessera:refetch", { detail: { topic: element.dataset.topic } }));
  }
}

/** Fetch every REST resource once; elements without one are marked as possibly outdated. */
export async function fetchTwins() {
  await Promise.allSettled($$("[data-topic]").map((element) => {
    if (socket?.readyState === WebSocket.OPEN && isPaced(element.dataset.topic)) return null;
    if (!element.dataset.twin) element.dispatchEvent(new CustomEvent("tessera:refetch", { detail: { topic: element.dataset.topic } }));
    return fetchTwin(element);
  }));
  badge();
}

// Each check waits for the previous responses, and for four times their duration after them. The pause has a random part,
// so that many tabs that lose their sockets at once do not send their checks at once.
function poll(on) {
  if (on && !pollTimer) pollTimer = setTimeout(pollOnce, spread(POLL_MS));
  if (!on && pollTimer) pollTimer = clearTimeout(pollTimer) ?? null;
}

const spread = (ms) => ms * (0.75 + Math.random() / 2);

async function pollOnce() {
  const [begun, own] = [performance.now(), pollTimer];
  await fetchTwins();
  pollWait = Math.min(LONGEST_WAIT_MS, Math.max(POLL_MS, POLL_REST * (performance.now() - begun)));
  if (pollTimer === own) pollTimer = setTimeout(pollOnce, spread(pollWait));
}

const ask = (topics) => socket?.send(JSON.stringify({ subscribe: topics, confirm: true }));

function connect() {
  clearTimeout(retryTimer);
  if (paused || !wanted.size) return;
  let fresh;
  try { fresh = new WebSocket(address()); } catch { again(); return; }
  socket = fresh;
  fresh.addEventListener("open", () => {
    const again = failures > 0 || wasOpen;
    failures = 0;
    wasOpen = true;
    lastWord = performance.now();
    poll(false);
    ask([...wanted]);
    if (again) fetchTwins();
    badge();
  });
  fresh.addEventListener("message", receive);
  fresh.addEventListener("close", (event) => { if (socket === fresh) { socket = null; again(event.code); } });
}

function again(code = 0) {
  if (paused) return badge();
  failures += 1;
  // A refusal (4401, 4403) does not end soon by itself; other errors are retried with increasing pauses.
  const base = code >= 4400 && code < 4500 ? LONGEST_WAIT_MS : Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(failures - 1, 8));
  const wait = base * (0.75 + Math.random() / 2);
  retryAt = performance.now() + wait;
  retryTimer = setTimeout(connect, wait);
  if (failures >= POLL_AFTER_FAILURES) poll(true);
  badge();
}

/** Find the topics of the page and subscribe to new ones. */
export function lookForTopics() {
  const found = $$("[data-topic]").map((element) => element.dataset.topic).filter((topic) => topic && !wanted.has(topic));
  const fresh = [...new Set(found)];
  if (!fresh.length) return;
  fresh.forEach((topic) => wanted.add(topic));
  if (socket?.readyState === WebSocket.OPEN) ask(fresh);
  else if (!socket && !retryTimer) connect();
}

function pause() {
  paused = true;
  clearTimeout(retryTimer);
  poll(false);
  socket?.close(1000);
  socket = null;
  badge();
}

function resume() {
  clearTimeout(hiddenTimer);
  if (!paused) {
    // After a suspend of the machine, a dead socket may still report that it is open.
    if (socket && performance.now() - lastWord > 2 * staleAfterMs()) socket.close();
    return;
  }
  paused = false;
  failures = 0;
  connect();
  fetchTwins();
}

export function startLive() {
  nameVersions();
  lookForTopics();
  document.addEventListener("htmx:afterSettle", lookForTopics);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) hiddenTimer = setTimeout(pause, HIDDEN_PAUSE_MS);
    else resume();
  });
  addEventListener("online", () => { if (!socket && !paused) connect(); });
  addEventListener("pagehide", () => { clearTimeout(retryTimer); socket?.close(1000); });
  addEventListener("pageshow", (event) => { if (event.persisted && !socket) { failures = 0; connect(); fetchTwins(); } });
  setInterval(badge, 1000);
  badge();
}

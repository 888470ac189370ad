// One websocket a tab. Elements say what they show with data-topic and where its REST twin is with data-twin; every message
// is dispatched on the document as `tessera:<topic>` and on those elements as `tessera:update`, both with
// detail {topic, version, data}. The socket is a hint and the REST resource is the truth: after every (re)connect the
// twins are fetched, and while no socket can be had they are polled. Messages of whole pages have a pace (paced.js).
import { $, $$, getJson, say } from "./dom.js";
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
  let words = say("Live");
  const silent = Math.round((performance.now() - lastWord) / 1000);
  if (paused) [state, words] = ["paused", say("Paused")];
  else if (socket?.readyState !== WebSocket.OPEN) {
    const wait = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
    if (failures === 0) [state, words] = ["connecting", say("Connecting")];
    else if (pollTimer && lastWord && silent < 3 * pollWait / 1000) [state, words] = ["stale", say("Polled {seconds} s ago", { seconds: silent })];
    else [state, words] = ["offline", say("Offline")];
    element.title = failures ? say("Retry in {seconds} s", { seconds: wait }) : "";
  } else if (silent * 1000 > staleAfterMs()) [state, words] = ["stale", say("Stale {seconds} s", { seconds: silent })];
  else element.title = say("Updates arrive as they happen");
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
  // In the order in which they come: their versions are times of several clocks, and a clock may be set back.
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

// From here on nothing is missed; what happened between the page's making and now has to be fetched.
function catchUp(topics) {
  for (const element of $$("[data-topic]")) {
    const { topic } = element.dataset;
    if (!topics.has(topic) || topic === "rounds" || isPaced(topic)) continue;
    if (element.dataset.twin) fetchTwin(element).catch(() => {});
    else element.dispatchEvent(new CustomEvent("tessera:refetch", { detail: { topic: element.dataset.topic } }));
  }
}

/** Ask every twin once; elements without one are told that they may be behind. */
export async function fetchTwins() {
  await Promise.allSettled($$("[data-topic]").map((element) => {
    if (socket?.readyState === WebSocket.OPEN && isPaced(element.dataset.topic)) return null;
    if (!element.dataset.twin) element.dispatchEvent(new CustomEvent("tessera:refetch", { detail: { topic: element.dataset.topic } }));
    return fetchTwin(element);
  }));
  badge();
}

// Each question waits for the answers to the one before, four times as long as they took, and not as long as anybody
// else's: many tabs that lose their sockets at once do not ask at once.
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
  // A refusal (4401, 4403) will not change by itself soon; everything else is tried again with growing waits.
  const base = code >= 4400 && code < 4500 ? LONGEST_WAIT_MS : Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(failures - 1, 8));
  const wait = base * (0.75 + Math.random() / 2);
  retryAt = performance.now() + wait;
  retryTimer = setTimeout(connect, wait);
  if (failures >= POLL_AFTER_FAILURES) poll(true);
  badge();
}

/** Look which topics the page shows and subscribe to those that are new. */
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
    // A sleeping machine leaves a dead socket behind that still calls itself open.
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

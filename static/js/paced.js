// Topics of whole pages, which many viewers follow. Values go to data-bind at once as `tessera:value`. Parts hear
// `tessera:update` spread over the seconds that the message names as `pace`, so that five hundred pages do not fetch in the
// same moment.
import { $$ } from "./dom.js";

const newest = new Map();
const due = new Map();
const told = new Map();

/** Whether a topic is one of whole pages; its newest message comes with each subscription. */
export const isPaced = (topic) => topic === "overview" || topic === "nodes" || topic.startsWith("queue:");

function tell(type, topic) {
  const { version, data } = newest.get(topic);
  const detail = { topic, version, data };
  document.dispatchEvent(new CustomEvent(`tessera:${topic}`, { detail }));
  for (const element of $$(`[data-topic="${CSS.escape(topic)}"]`)) element.dispatchEvent(new CustomEvent(type, { detail }));
}

/** Take a message with a pace in; after a reconnect the same one may come again. */
export function take(message) {
  const { topic, version, pace } = message;
  if (newest.get(topic)?.version === version) return;
  newest.set(topic, message);
  tell("tessera:value", topic);
  if (due.has(topic)) return;
  const wait = Math.max(0, (told.get(topic) ?? -Infinity) + 1000 * pace - performance.now());
  const more = pace > 2 ? Math.random() * 500 * pace : 0;
  due.set(topic, setTimeout(() => {
    due.delete(topic);
    told.set(topic, performance.now());
    tell("tessera:update", topic);
  }, wait + more));
}

/** Requests of parts say which version they are for, so that the server makes a part once for all who ask. */
export function nameVersions() {
  document.addEventListener("htmx:configRequest", (event) => {
    const topic = event.target.dataset?.topic;
    const version = topic && event.detail.verb === "get" ? newest.get(topic)?.version : null;
    if (version) event.detail.parameters.v = version;
  });
}

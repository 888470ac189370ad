// Whole-page topics with many viewers. Values update data-bind elements at once (`tessera:value`). Parts receive
// `tessera:update` at a random time within `pace` seconds, which the message names, so that 500 pages do not fetch at
// once.
import { $$ } from "./dom.js";

const newest = new Map();
const due = new Map();
const told = new Map();

/** Return whether a topic is a whole-page topic; each subscription returns its newest message. */
export const isPaced = (topic) => topic === "overview" || topic === "nodes" || topic.startsWith("queue:");

function tell(type, topic) {
  const { version, data } = newest.get(topic);
  const detail = { topic, version, data };
  document.dispatchEvent(new CustomEvent(`tessera:${topic}`, { detail }));
  for (const element of $$(`[data-topic="${CSS.escape(topic)}"]`)) element.dispatchEvent(new CustomEvent(type, { detail }));
}

/** Handle a message with a pace; after a reconnect the same message may arrive again. */
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

/** Requests of parts name their version, so that the server renders a part once for all viewers. */
export function nameVersions() {
  document.addEventListener("htmx:configRequest", (event) => {
    const topic = event.target.dataset?.topic;
    const version = topic && event.detail.verb === "get" ? newest.get(topic)?.version : null;
    if (version) event.detail.parameters.v = version;
  });
}

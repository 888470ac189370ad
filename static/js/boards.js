// Topics of many viewers, followed by versions. A message says on which version it builds (null: it is the whole); values go
// to data-bind at once as `tessera:value`, and parts hear `tessera:update` spread over the seconds that the server names, so
// that five hundred pages do not fetch in the same moment.
import { $$ } from "./dom.js";

const boards = new Map();
const due = new Map();
const told = new Map();

/** Whether a topic is followed by versions. */
export const isFollowed = (topic) => topic === "overview" || topic === "nodes" || topic.startsWith("queue:");

/** For those of `topics` that are followed: the version that is here, or null. */
export const since = (topics) => Object.fromEntries([...topics].filter(isFollowed).map((topic) => [topic, boards.get(topic)?.version ?? null]));

const places = (topic) => $$(`[data-topic="${CSS.escape(topic)}"]`);

function tell(type, topic) {
  const { version, data } = boards.get(topic);
  const detail = { topic, version, data };
  document.dispatchEvent(new CustomEvent(`tessera:${topic}`, { detail }));
  for (const element of places(topic)) element.dispatchEvent(new CustomEvent(type, { detail }));
}

function spread(topic, seconds) {
  if (due.has(topic)) return;
  const wait = Math.max(0, (told.get(topic) ?? -Infinity) + 1000 * seconds - performance.now());
  const more = seconds > 2 ? Math.random() * 500 * seconds : 0;
  due.set(topic, setTimeout(() => {
    due.delete(topic);
    told.set(topic, performance.now());
    tell("tessera:update", topic);
  }, wait + more));
}

/** Take a message in; false when it builds on a version that is not here. */
export function take({ topic, version, base, data, more, pace }) {
  const known = boards.get(topic);
  if (base !== null && known?.version !== base) return false;
  const board = base === null && known?.coming !== version ? { version: null, data: {} } : known;
  for (const [key, value] of Object.entries(data)) {
    if (value === null) delete board.data[key];
    else board.data[key] = value;
  }
  // A version that comes in several messages is there with the last one; until then a lost rest means the whole again.
  if (more) board.coming = version;
  else Object.assign(board, { version, coming: null });
  boards.set(topic, board);
  if (more) return true;
  tell("tessera:value", topic);
  spread(topic, pace ?? 1);
  return true;
}

/** Requests of parts say which version they are for, so that the server makes a part once for all who ask. */
export function nameVersions() {
  document.addEventListener("htmx:configRequest", (event) => {
    const topic = event.target.dataset?.topic;
    const version = topic && event.detail.verb === "get" ? boards.get(topic)?.version : null;
    if (version) event.detail.parameters.v = version;
  });
}

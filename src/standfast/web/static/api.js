// The JSON API: all that pages know comes through here.
import { parsed } from "./dom.js";

export class ApiError extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters ?? {})) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  const text = query.toString();
  return `/api/v1/${path}${text ? `?${text}` : ""}`;
}

async function ask(url, options) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(
      0,
      "Unreachable",
      "The server does not answer. Is `standfast ui` still running?"
    );
  }
  let content = null;
  try {
    content = parsed(await answer.text());
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (!answer.ok || content === null) {
    const said = content?.error ?? {};
    throw new ApiError(
      answer.status,
      said.kind ?? "Error",
      said.message ?? `the server answered ${answer.status}`
    );
  }
  return content;
}

/** What is at a path of the API. */
export const get = (path, parameters, signal) => ask(address(path, parameters), { signal });

/** Changes something, or has something checked. */
export const send = (method, path, content) =>
  ask(address(path), {
    method,
    headers: { "X-Standfast": "1", "Content-Type": "application/json" },
    body: content === undefined ? undefined : JSON.stringify(content)
  });

/** One request at a time: a later one ends the one before it, whose answer is never seen. */
export function latest() {
  let current = null;
  return async (path, parameters) => {
    current?.abort();
    const mine = (current = new AbortController());
    const answer = await get(path, parameters, mine.signal);
    if (mine.signal.aborted) throw new DOMException("late", "AbortError");
    return answer;
  };
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const seen = () =>
  document.hidden
    ? new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }))
    : null;

/**
 * Calls `changed` whenever the store is another than before, as long as the page is looked at.
 * `trouble` is called with an error when the store cannot be reached, and with null when it can again.
 */
export async function watch(state, changed, trouble) {
  let known = state ?? null;
  let failures = 0;
  for (;;) {
    while (document.hidden) await seen();
    try {
      const store = await get(
        "store",
        known === null || failures ? {} : { wait: known, seconds: 20 }
      );
      if (failures) trouble(null);
      if (failures || (known !== null && store.state !== known)) changed(store);
      failures = 0;
      if (store.state === known) await pause(50);
      known = store.state;
    } catch (error) {
      failures += 1;
      if (failures > 1 || error.status) trouble(error);
      await pause(Math.min(5000, 500 * 2 ** failures));
    }
  }
}

// What a person chose on the page (search, order, page of a table; period of a chart) lives in the
// address behind the `?` of its hash, so that a link and a reload show the same.

const words = () => new URLSearchParams(location.hash.split("?")[1] ?? "");

/** The word of `key`; null where nothing was chosen. */
export const chosen = (key) => words().get(key);

/** Keeps the `changes`, by key; null takes one out. */
export function choose(changes) {
  const kept = words();
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) kept.delete(key);
    else kept.set(key, value);
  }
  const path = location.hash.split("?")[0] || "#/";
  history.replaceState(null, "", kept.size ? `${path}?${kept}` : path);
}

// Small tools to build and update elements. Text is always set as text, never as markup:
// job names and reasons come from people.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** h("p", {class: "x"}, "text", child): an HTML element. */
export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

/** As `h`, for SVG. */
export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Changes text only where it differs, so that a selection survives a pass. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  node.hidden = !visible;
}

/**
 * Keeps one child per key, in order: `make(item)` builds it, `update(node, item)` fills it.
 * Nodes live as long as their key, so hovering and transitions are not cut by a pass.
 */
export function keyed(parent, items, key, make, update) {
  const before = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  const nodes = items.map((item) => {
    const name = String(key(item));
    let node = before.get(name);
    if (!node) {
      node = make(item);
      node.dataset.key = name;
    }
    before.delete(name);
    update(node, item);
    return node;
  });
  for (const node of before.values()) node.remove();
  nodes.forEach((node, i) => {
    if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] ?? null);
  });
}

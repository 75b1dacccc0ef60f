// Words of the field, explained where they stand: on hover, on focus, on touch.

import { byId, h, setText, show } from "./dom.js";

const MARGIN = 8; // pixels between the tooltip and the edge of the window

let meanings = null; // fetched once, at the first look

/** A word with its meaning in a tooltip; `word` is its name in terms.json. */
export const term = (word, text = word) =>
  h("span", { class: "term", tabindex: "0", "data-term": word, "aria-describedby": "term-tip" }, text);

export function explainTerms() {
  for (const name of ["pointerover", "focusin"]) document.addEventListener(name, (event) => explain(event.target));
  for (const name of ["pointerout", "focusout"]) document.addEventListener(name, (event) => ofTerm(event.target) && hide());
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", hide, { passive: true, capture: true });
}

const ofTerm = (node) => (node instanceof Element ? node.closest(".term") : null);
const hide = () => show(byId("term-tip"), false);

async function explain(target) {
  const node = ofTerm(target);
  if (!node) return;
  meanings ??= fetch("/static/terms.json").then((answer) => answer.json());
  const meaning = (await meanings.catch(() => ({})))[node.dataset.term];
  if (!meaning || !(node.matches(":hover") || node.matches(":focus"))) return;
  const tip = byId("term-tip");
  setText(tip, meaning);
  show(tip, true);
  const at = node.getBoundingClientRect();
  const left = Math.min(at.left, innerWidth - tip.offsetWidth - MARGIN);
  const below = at.bottom + MARGIN / 2;
  const above = at.top - tip.offsetHeight - MARGIN / 2;
  tip.style.left = `${Math.max(MARGIN, left)}px`;
  tip.style.top = `${below + tip.offsetHeight > innerHeight && above > 0 ? above : below}px`;
}

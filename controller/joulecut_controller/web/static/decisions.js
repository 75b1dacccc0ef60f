// The newest lines of the audit log: which clock changed, or did not, and why.

import { h, keyed, setText, show } from "./dom.js";
import { clock } from "./format.js";

const LINES_MAX = 40;

export class Decisions {
  constructor(root) {
    this.list = h("ol", { class: "decisions" });
    this.none = h("p", { class: "empty" });
    root.append(this.none, this.list);
  }

  update(board) {
    const counts = new Map();
    const events = board.events.slice(0, LINES_MAX);
    show(this.none, events.length === 0);
    show(this.list, events.length > 0);
    setText(this.none, "No decision yet: the first comes once a job has a baseline.");
    const key = (event) => {
      const name = `${event.at_unix_s} ${event.kind} ${event.job} ${event.generation} ${event.text}`;
      counts.set(name, (counts.get(name) ?? 0) + 1);
      return `${name} ${counts.get(name)}`;
    };
    keyed(this.list, events, key, make, fill);
  }
}

const make = () => h("li", {},
  h("time"), h("span", { class: "kind-chip" }), h("span", { class: "words" }));

function fill(node, event) {
  const [time, kind, words] = node.children;
  setText(time, clock(event.at_unix_s));
  time.setAttribute("datetime", new Date(event.at_unix_s * 1000).toISOString());
  setText(kind, event.kind);
  kind.className = `kind-chip ${event.kind}`;
  const about = [event.job, event.generation ? `plan ${event.generation}` : ""].filter(Boolean).join(", ");
  words.replaceChildren(event.text, about ? h("small", {}, about) : "");
}

// A table a page at a time: the server searches, sorts and cuts it, whatever its length.

import { choose, chosen } from "./address.js";
import { h, keyed, setText, show } from "./dom.js";
import { term } from "./terms.js";

const SEARCH_MS = 200; // after the last key
const SIZE = 50;

/**
 * columns: [{key, label, term, sort, low, number, make(), fill(cell, row)}]; `sort` names the
 * server’s column, `low` columns are hidden on narrow screens. The first column heads its row.
 */
export class PagedTable {
  constructor({ url, columns, label, key, size = SIZE, empty, search = true, fill = () => {}, shown = () => {} }) {
    Object.assign(this, { url, columns, key, size, empty, label, fillRow: fill, shown });
    this.usual = { search: "", sort: columns[0].sort, order: "ascending", page: 1 };
    this.asked = this.fromAddress();
    this.search = h("input", { type: "search", class: "search", placeholder: "Search", "aria-label": `Search ${label}`, autocomplete: "off", spellcheck: "false" });
    this.search.value = this.asked.search;
    this.count = h("span", { class: "count", role: "status" });
    this.back = h("button", { type: "button", "aria-label": `Previous page of ${label}` }, "‹");
    this.next = h("button", { type: "button", "aria-label": `Next page of ${label}` }, "›");
    this.pager = h("span", { class: "pager" }, this.back, this.next);
    this.tools = h("div", { class: "table-tools" }, search ? this.search : null, this.count, this.pager);
    this.heads = columns.map((column) => this.head(column));
    this.body = h("tbody");
    this.table = h("table", {}, h("thead", {}, h("tr", {}, ...this.heads)), this.body);
    this.scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, this.table);
    this.none = h("p", { class: "empty", hidden: true });
    this.root = h("div", { class: "paged" }, this.tools, this.scroll, this.none);
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.ask({ search: this.search.value, page: 1 }), SEARCH_MS);
    });
    this.back.addEventListener("click", () => this.ask({ page: this.asked.page - 1 }));
    this.next.addEventListener("click", () => this.ask({ page: this.asked.page + 1 }));
  }

  head(column) {
    const text = column.term ? term(column.term, column.label) : column.label;
    const node = h("th", { scope: "col", class: classOf(column) });
    if (!column.sort) {
      node.append(text);
      return node;
    }
    const button = h("button", { type: "button", class: "sort" }, column.label);
    button.addEventListener("click", () => {
      const same = this.asked.sort === column.sort;
      // Numbers are looked at from the largest down.
      const first = column.number ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      this.ask({ sort: column.sort, order: same && this.asked.order === first ? other : first, page: 1 });
    });
    node.append(button);
    if (column.term) {
      button.classList.add("term");
      button.dataset.term = column.term;
      button.setAttribute("aria-describedby", "term-tip");
    }
    return node;
  }

  word(key) {
    return `${this.label.toLowerCase()}-${key}`;
  }

  /** What the address asks for; words that no column and no order has count for nothing. */
  fromAddress() {
    const asked = { ...this.usual };
    for (const key of Object.keys(asked)) asked[key] = chosen(this.word(key)) ?? asked[key];
    if (!this.columns.some((column) => column.sort === asked.sort)) asked.sort = this.usual.sort;
    if (asked.order !== "descending") asked.order = this.usual.order;
    asked.page = Math.max(1, Math.trunc(Number(asked.page)) || 1);
    return asked;
  }

  ask(changes) {
    Object.assign(this.asked, changes);
    choose(Object.fromEntries(Object.entries(this.asked).map(([key, value]) => [this.word(key), value === this.usual[key] ? null : value])));
    return this.refresh();
  }

  /** Fetches the page again; of two answers on their way only the later one is shown. */
  async refresh() {
    this.running?.abort();
    const running = (this.running = new AbortController());
    const query = new URLSearchParams({ ...this.asked, size: this.size });
    try {
      const answer = await fetch(`${this.url}${this.url.includes("?") ? "&" : "?"}${query}`, { signal: running.signal });
      if (answer.ok && running === this.running) this.show(await answer.json());
    } catch {
      // The stream says when the controller is gone; the next board asks again.
    }
  }

  show(page) {
    this.asked.page = page.page;
    const from = (page.page - 1) * page.size + 1;
    const to = from + page.rows.length - 1;
    setText(this.count, page.total ? `${from} to ${to} of ${page.total}` : "");
    show(this.pager, page.pages > 1);
    this.back.disabled = page.page <= 1;
    this.next.disabled = page.page >= page.pages;
    show(this.tools, page.pages > 1 || page.total > 5 || this.asked.search !== "");
    show(this.scroll, page.total > 0);
    show(this.none, page.total === 0);
    setText(this.none, this.asked.search ? "Nothing matches the search." : this.empty());
    this.heads.forEach((node, i) => {
      if (this.columns[i].sort === this.asked.sort) node.setAttribute("aria-sort", this.asked.order);
      else node.removeAttribute("aria-sort");
    });
    keyed(this.body, page.rows, this.key, () => this.row(), (node, row) => {
      this.columns.forEach((column, i) => column.fill(node.children[i], row));
      this.fillRow(node, row);
    });
    this.shown(page);
  }

  row() {
    return h("tr", {}, ...this.columns.map((column, i) =>
      h(i ? "td" : "th", { scope: i ? null : "row", class: classOf(column), "data-label": column.label }, ...(column.make?.() ?? []))));
  }
}

const classOf = (column) => [column.number ? "number" : "", column.low ? "low" : "", column.wide ? "wide" : ""].filter(Boolean).join(" ") || null;

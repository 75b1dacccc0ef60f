// Line charts of the history, drawn by uPlot (vendor/uplot) in the page’s colours.

import { choose, chosen } from "./address.js";
import { h, setText, show } from "./dom.js";
import { known } from "./format.js";

const SPANS = [["10 min", 600], ["1 h", 3600], ["24 h", 86400], ["7 days", 604800]];
const DAY = 86400;
const REFRESH_MS = 15_000; // as often as a point of the finest resolution ends
const HEIGHT_MIN = 190;
const WIDTH_MIN = 60;

/**
 * series: [{key, label, colour (a custom property), dash, fill}], the values of /api/v1/history.
 * `say(data)` is the chart in one sentence, for readers who do not see it.
 */
export class HistoryChart {
  constructor({ title, query, series, format, say, band, span = DAY, limit = null }) {
    Object.assign(this, { query, series, format, say, band, span, limit });
    this.plot = h("div", { class: "chart", role: "img", "aria-label": "History, not loaded yet" });
    this.none = h("p", { class: "empty", hidden: true });
    this.legend = h("p", { class: "chart-key" });
    const asked = Number(chosen("period"));
    this.chosen = SPANS.some(([, seconds]) => seconds === asked);
    if (this.chosen) this.span = asked;
    this.buttons = SPANS.map(([name, seconds]) => {
      const button = h("button", { type: "button", "aria-pressed": String(seconds === this.span) }, name);
      button.addEventListener("click", () => this.choose(seconds));
      return button;
    });
    this.root = h("section", { class: "card chart-card" },
      h("div", { class: "card-head" }, h("h2", {}, ...title), h("span", { class: "spans", role: "group", "aria-label": "Period" }, ...this.buttons)),
      this.plot, this.legend, this.none);
    this.legend.append(...series.map((one) => h("span", { class: `line-key ${one.name}` }, one.label)));
    new ResizeObserver(() => this.resize()).observe(this.plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  choose(seconds) {
    this.chosen = true;
    choose({ period: seconds });
    this.take(seconds);
    this.refresh(true);
  }

  take(seconds) {
    this.span = seconds;
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(SPANS[i][1] === seconds)));
  }

  /** At most every REFRESH_MS, unless `now`. */
  async refresh(now = false) {
    if (!now && this.fetchedMs && performance.now() - this.fetchedMs < REFRESH_MS) return;
    this.fetchedMs = performance.now();
    if (!this.chosen) await this.fit();
    this.data = (await this.ask(this.span)) ?? this.data;
    this.draw();
  }

  /** Until a person chooses: the period that at least half is known of, up to a day. */
  async fit() {
    if (this.fits === DAY) return;
    const day = await this.ask(DAY);
    const first = day?.at_unix_s[day[this.series.at(-1).key].findIndex(known)];
    const age = first ? day.at_unix_s.at(-1) - first : 0;
    this.fits = SPANS.map(([, seconds]) => seconds).filter((seconds) => seconds <= Math.min(DAY, Math.max(600, 2 * age))).at(-1);
    if (!this.chosen) this.take(this.fits);
  }

  async ask(span) {
    const answer = await fetch(`/api/v1/history?${new URLSearchParams({ span_s: span, ...this.query })}`).catch(() => null);
    return answer?.ok ? answer.json() : null;
  }

  draw() {
    const { data } = this;
    if (!data) return;
    const lines = this.series.map(({ key }) => data[key]);
    const points = lines.at(-1).filter(known).length;
    this.least = leastOf(lines.flat().filter(known));
    show(this.plot, points > 0);
    show(this.legend, points > 0 && this.series.length > 1);
    show(this.none, points === 0);
    setText(this.none, `No point yet: one is kept every ${data.step_s >= 60 ? `${Math.round(data.step_s / 60)} minutes` : `${data.step_s} seconds`}.`);
    if (!points) return;
    this.plot.setAttribute("aria-label", this.say(data));
    this.chart?.destroy();
    const wide = Math.max(WIDTH_MIN, this.plot.clientWidth);
    const high = Math.max(HEIGHT_MIN, this.plot.clientHeight);
    this.chart = new globalThis.uPlot(this.options(wide, high), withLone(data.at_unix_s, lines, data.step_s), this.plot);
  }

  options(width, height) {
    const style = getComputedStyle(this.plot);
    const of = (name) => style.getPropertyValue(name).trim();
    const axis = {
      stroke: of("--muted"), font: `11.5px ${style.fontFamily}`,
      grid: { stroke: of("--line"), width: 1 }, ticks: { show: false },
    };
    const { format, band } = this;
    const span = this.span;
    const end = this.data.at_unix_s.at(-1) + this.data.step_s / 2;
    return {
      width, height, padding: [10, 24, 0, 0],
      legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true, range: () => [end - span, end] }, y: { range: (_, low, high) => rangeOf(Math.max(low, this.least), high) } },
      axes: [
        { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((tick) => timeText(tick, span)) },
        { ...axis, size: 62, space: 34, values: (_, ticks) => ticks.map(format) },
      ],
      series: [{}, ...this.series.map((one) => ({
        label: one.label, stroke: of(one.colour), width: one.dash ? 1.4 : 2, dash: one.dash,
        spanGaps: false, points: { show: false }, fill: one.fill ? of(one.fill) : undefined,
      }))],
      bands: band ? [{ series: band, fill: of("--saved-area") }] : [],
      hooks: { init: [(chart) => tip(chart, this.series, format)] },
    };
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (this.chart && width >= WIDTH_MIN && (Math.abs(width - this.chart.width) > 1 || height > this.chart.height + 1)) this.draw();
  }
}

/** A point is the mean of a step. Alone between gaps it is drawn as long as the step. */
function withLone(times, lines, step) {
  const columns = [times, ...lines].map(() => []);
  const told = (i) => lines.some((line) => known(line[i]));
  times.forEach((at, i) => {
    const lone = told(i) && !told(i - 1) && !told(i + 1);
    for (const time of lone ? [at - step / 2, at + step / 2] : [at]) {
      columns[0].push(time);
      lines.forEach((line, k) => columns[k + 1].push(line[i] ?? null));
    }
  });
  return columns;
}

/** The axis begins at the least of the usual values: beside an idle hour no saving could be seen. */
function leastOf(values) {
  const middle = values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
  return Math.min(...values.filter((value) => value >= 0.5 * middle));
}

/** At least a tenth of the value, so that noise does not look like a mountain. */
function rangeOf(low, high) {
  const room = Math.max(high - low, 0.1 * Math.abs(high), 1e-9);
  const middle = (low + high) / 2;
  return [Math.max(0, middle - 0.6 * room), middle + 0.6 * room];
}

function timeText(unix, span) {
  const at = new Date(unix * 1000);
  if (span <= 86400) return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  const midnight = at.getHours() === 0 && at.getMinutes() === 0;
  return midnight
    ? at.toLocaleDateString([], { weekday: "short", day: "numeric" })
    : at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

/** What stands under the pointer, beside it. */
function tip(chart, series, format) {
  const node = h("div", { class: "tip", hidden: true });
  chart.over.append(node);
  chart.over.addEventListener("pointerleave", () => show(node, false));
  chart.over.addEventListener("pointermove", () => {
    const at = chart.cursor.idx;
    const values = series.map((one, i) => [one.label, at === null ? null : chart.data[i + 1][at]]).filter(([, value]) => known(value));
    show(node, values.length > 0);
    if (!values.length) return;
    const time = new Date(chart.data[0][at] * 1000).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit", hour12: false });
    setText(node, `${time}: ${values.map(([label, value]) => `${label} ${format(value)}`).join(", ")}`);
    const left = Math.min(chart.cursor.left + 12, chart.over.clientWidth - node.offsetWidth - 4);
    node.style.left = `${Math.max(0, left)}px`;
    node.style.top = "4px";
  });
}

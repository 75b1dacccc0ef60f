// Scales and ticks for the charts.

/** Maps [low, high] to [from, to] linearly. */
export const scale = (low, high, from, to) => (value) =>
  from + ((value - low) / (high - low)) * (to - from);

/** Round numbers inside [low, high], about `count` of them. */
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw);
  const first = Math.ceil(low / step - 1e-9);
  const result = [];
  for (let i = first; i * step <= high + step * 1e-9; i++) result.push(i * step);
  return result;
}

/** [seconds per unit, its name]: milliseconds where everything is below a second. */
export const timeUnit = (longest) => (longest < 1 ? [0.001, "ms"] : [1, "s"]);

/** Decimals that show every tick exactly. */
export function decimals(values) {
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) : 0.01;
  for (let d = 0; d < 5; d++) {
    const grown = step * 10 ** d;
    if (Math.abs(grown - Math.round(grown)) < 1e-6 * grown) return d;
  }
  return 5;
}

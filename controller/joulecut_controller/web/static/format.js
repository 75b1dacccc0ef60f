// Numbers for people. An unknown value is a dash, never a zero.

export const NONE = "–";
const THIN = "\u202f";
const MINUS = "\u2212";

const known = (value) => typeof value === "number" && Number.isFinite(value);

function digits(value, significant) {
  const size = Math.abs(value);
  const decimals = size === 0 ? 0 : Math.max(0, significant - 1 - Math.floor(Math.log10(size)));
  return value.toFixed(Math.min(decimals, 6));
}

function scaled(value, unit, significant, steps) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  for (const [from, prefix] of steps) {
    if (size >= from) return `${digits(value / from, significant)}${THIN}${prefix}${unit}`;
  }
  return `${digits(value, significant)}${THIN}${unit}`;
}

const LARGE = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export const joules = (value, significant = 3) => scaled(value, "J", significant, LARGE);
/** Of sums over time: watt-hours. An iteration’s energy is in joules. */
export const wattHours = (joule) => scaled(known(joule) ? joule / 3600 : NaN, "Wh", 3, LARGE);
export const watts = (value, significant = 3) => scaled(value, "W", significant, LARGE);

/** Of money or weight: cents, and what is below them. */
export const amount = (value) => (Math.abs(value) < 1 ? digits(value, 2) : value.toFixed(2));

export function seconds(value, significant = 3) {
  if (!known(value)) return NONE;
  if (Math.abs(value) >= 1 || value === 0) return `${digits(value, significant)}${THIN}s`;
  return `${digits(value * 1e3, significant)}${THIN}ms`;
}

/** A duration that passed: 4 s, 3 min, 2 h. */
export function ago(value) {
  if (!known(value)) return NONE;
  if (value < 90) return `${Math.max(0, Math.round(value))}${THIN}s`;
  if (value < 5400) return `${Math.round(value / 60)}${THIN}min`;
  if (value < 172800) return `${Math.round(value / 3600)}${THIN}h`;
  return `${Math.round(value / 86400)} days`;
}

/** 0.149 -> "14.9 %"; `signed` writes +/−, as for a slowdown. */
export function percent(ratio, { signed = false, decimals = 1 } = {}) {
  if (!known(ratio)) return NONE;
  const rounded = (ratio * 100).toFixed(decimals);
  const zero = Number(rounded) === 0;
  const sign = zero ? (signed ? "±" : "") : ratio < 0 ? MINUS : signed ? "+" : "";
  return `${sign}${rounded.replace("-", "")}${THIN}%`;
}

export const mhz = (value) => (known(value) ? `${value}${THIN}MHz` : NONE);

export const clock = (unix) =>
  known(unix)
    ? new Date(unix * 1000).toLocaleTimeString([], {
        hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
      })
    : NONE;

export const day = (unix) =>
  new Date(unix * 1000).toLocaleDateString([], { day: "numeric", month: "short" });

export const gpuName = (gpu) =>
  gpu.node === null || gpu.node === undefined ? gpu.uuid : `${gpu.node || "?"}/${gpu.index}`;

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export { known, MINUS };

// Numbers for people: as many digits as matter, in the unit that suits their size.

import type { Unit } from "./data";

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
const LARGE = ["", "k", "M", "G", "T", "P"];

function digits(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

function scaled(value: number, step: number, names: string[], unit: string): string {
  let level = 0;
  while (Math.abs(value) >= step && level < names.length - 1) {
    value /= step;
    level++;
  }
  return `${digits(value)} ${names[level]}${unit}`.trim();
}

/** Returns a duration in nanoseconds as text. */
export function duration(ns: number): string {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${digits(ns / 1e9)} s`;
  if (size >= 1e6) return `${digits(ns / 1e6)} ms`;
  if (size >= 1e3) return `${digits(ns / 1e3)} µs`;
  return `${digits(ns)} ns`;
}

/** Returns a number with its unit as text. */
export function written(value: number | null | undefined, unit: Unit): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  switch (unit) {
    case "ns": return duration(value);
    case "ms": return duration(value * 1e6);
    case "s": return duration(value * 1e9);
    case "bytes": return scaled(value, 1024, BYTES, "");
    case "share": return `${digits(value * 100)} %`;
    case "count": return value >= 1e5 ? scaled(value, 1000, LARGE, "") : digits(value);
    case "FLOP/s": return scaled(value, 1000, LARGE, "FLOP/s");
    case "B/s": return scaled(value, 1000, LARGE, "B/s");
    case "": return digits(value);
    default: return `${digits(value)} ${unit}`;
  }
}

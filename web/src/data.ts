// What a page holds for its figures: JSON that mirrors the blocks of ridgeline.report.drawings.

/** The unit of numbers; `units.ts` writes them for people. */
export type Unit =
  | "" | "ns" | "ms" | "s" | "bytes" | "share" | "count" | "W" | "°C" | "MHz" | "%" | "FLOP/s" | "B/s" | "FLOP/B" | "J";

export interface Curve {
  name: string;
  values: (number | null)[];
  /** Names the colour, such as "forward"; "" takes the next free one. */
  kind: string;
}

export interface Mark {
  at: number;
  text: string;
}

export interface Band {
  start: number;
  end: number;
  text: string;
}

/** Values over one axis, as lines or stacked areas. */
export interface Curves {
  title: string;
  x: number[];
  x_name: string;
  x_unit: Unit;
  unit: Unit;
  curves: Curve[];
  stacked: boolean;
  /** A value holds until the next point, as the bars of a histogram do, or around its point, as those of steps do. */
  stepped: "" | "after" | "around";
  from_zero: boolean;
  marks: Mark[];
  bands: Band[];
}

/** A row of a timeline: columns of its events, in order of start. */
export interface Lane {
  group: string;
  name: string;
  about: string;
  kind: "steps" | "phases" | "idle" | "device" | "host";
  /** Nanoseconds since the start of the event before. */
  starts: number[];
  lengths: number[];
  depths: number[];
  /** Index into the columns of the timeline. */
  works: number[];
  /** How long before its start the host asked for an event of a device; -1 where that is not known. */
  launched: number[];
}

/** Events over time in lanes. What equal events have in common is a work: a row of `names`, `kinds`, `places`. */
export interface TimelineData {
  title: string;
  length_ns: number;
  lanes: Lane[];
  texts: string[];
  all_kinds: { colour: string; name: string }[];
  /** As file:line. */
  all_places: string[];
  /** The function of each place. */
  functions: string[];
  names: number[];
  kinds: number[];
  /** -1 where the place is unknown. */
  places: number[];
  facts: { label: string; texts: number[]; searched: boolean }[];
}

/** Lines of source, with what was found there. */
export interface SourceData {
  parts: { file: string; first: number; lines: string[] }[];
  marks: { file: string; line: number; text: string; kind: "finding" | "time"; share: number }[];
}

/** A ceiling: an arithmetic rate, which is flat, or a bandwidth, which slopes. */
export interface Roof {
  name: string;
  value: number;
  kind: "compute" | "memory";
  source: "measured" | "datasheet";
  is_doubtful: boolean;
}

export interface RooflinePoint {
  name: string;
  intensity: number;
  rate: number;
  ns: number;
  share: number;
  kind?: "compute" | "memory" | "overhead" | "";
  attained?: number | null;
  is_bound?: boolean;
  notes?: string[];
  row?: string;
}

/** Rate over intensity below the ceilings of a device. */
export interface Roofline {
  title: string;
  roofs: Roof[];
  groups: { name: string; points: RooflinePoint[] }[];
}

/** A tree with a width for each node, by one of several measures. */
export interface Icicle {
  title: string;
  names: string[];
  parents: number[];
  measures: { name: string; unit: Unit; values: number[] }[];
  notes: string[];
  set_off: number[];
  set_off_name: string;
  whole: string;
}

/** The samples of each variant of a comparison. */
export interface Samples {
  strips: { name: string; samples_ns: number[]; median_ns: number; is_baseline: boolean }[];
}

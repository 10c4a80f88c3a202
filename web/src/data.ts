// What a page holds for its figures: JSON that mirrors the blocks of ridgeline.report.drawings.

/** The unit of numbers; `units.ts` writes them for people. */
export type Unit =
  | "" | "ns" | "ms" | "s" | "bytes" | "share" | "count" | "W" | "°C" | "MHz" | "FLOP/s" | "FLOP/B" | "J";

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
  /** A value holds until the next point, as the bars of a histogram do. */
  stepped: boolean;
  marks: Mark[];
  bands: Band[];
}

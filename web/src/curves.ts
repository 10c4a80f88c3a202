// Curves over one axis, drawn by uPlot: lines, or areas that stand on each other.

import uPlot from "uplot";
import type { Curves } from "./data";
import { colour, kindColour, whenShown } from "./theme";
import { written } from "./units";

const HEIGHT = 240;
const MAX_STEPPED = 500;

/** Returns each curve added to those below it. */
function stacked(rows: (number | null)[][]): (number | null)[][] {
  const sum: number[] = [];
  return rows.map((row) => row.map((value, i) => (sum[i] = (sum[i] ?? 0) + (value ?? 0))));
}

/** Returns the ends of the axis of the values, with a little air above, and below where it does not begin at 0. */
function bounds(low: number, high: number, fromZero: boolean): [number, number] {
  if (fromZero) return [Math.min(0, low), 1.05 * high || 1];
  const air = 0.08 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [low - air, high + air];
}

/** Returns the distances that ticks may have: whole numbers where all values are, powers of 2 for bytes. */
function increments(unit: Curves["unit"], values: (number | null)[][]): { incrs?: number[] } {
  const decimal = [1, 2, 5].flatMap((one) => Array.from({ length: 12 }, (_, power) => one * 10 ** power)).sort((a, b) => a - b);
  if (unit === "bytes") return { incrs: Array.from({ length: 50 }, (_, power) => 2 ** power) };
  if ((unit === "" || unit === "count") && values.every((row) => row.every((one) => Number.isInteger(one)))) return { incrs: decimal };
  return {};
}

/** Returns a bar around each point, as wide as the way to its neighbours allows. */
const bars: uPlot.Series.PathBuilder = (plot, series, first, last) => {
  const [xs, ys] = [plot.data[0], plot.data[series]!];
  const fill = new Path2D();
  const ground = plot.valToPos(0, "y", true);
  for (let i = first; i <= last; i++) {
    const [before, at, after] = [xs[i - 1], xs[i]!, xs[i + 1]];
    const back = (at - (before ?? at - (after !== undefined ? after - at : 1))) / 2;
    const ahead = ((after ?? at + 2 * back) - at) / 2;
    const left = Math.round(plot.valToPos(at - back, "x", true));
    const right = Math.round(plot.valToPos(at + ahead, "x", true));
    const top = plot.valToPos(ys[i] ?? 0, "y", true);
    fill.rect(left, top, Math.max(right - left, 1), ground - top);
  }
  return { fill, stroke: new Path2D(), flags: 1 };
};

export function drawCurves(stage: HTMLElement, data: Curves): void {
  const own = data.curves.map((curve) => curve.values);
  const rows = data.stacked ? stacked(own) : own;
  // Steps as wide as a pixel or less would only flicker.
  const stepped = data.stepped === "around" && data.x.length > MAX_STEPPED ? "" : data.stepped;
  let plot: uPlot | null = null;
  let hidden = data.curves.map(() => false);
  const counted = data.x.map((x) => !data.bands.some((band) => band.start <= x && x <= band.end));
  const tops = data.x.map((_, i) => Math.max(...rows.map((row) => row[i] ?? 0)));
  // Steps that no figure counts may be many times as long as the others: they do not set the scale.
  const highest = (u: uPlot, otherwise: number): number => {
    const { min = -Infinity, max = Infinity } = u.scales.x ?? {};
    const seen = tops.filter((_, i) => counted[i] && data.x[i]! >= (min ?? -Infinity) && data.x[i]! <= (max ?? Infinity));
    const isWhole = hidden.every((one) => !one);
    return data.bands.length && isWhole && seen.length ? Math.max(...seen) : otherwise;
  };
  whenShown(stage, () => {
    if (plot) hidden = plot.series.slice(1).map((one) => !one.show).reverse();
    plot?.destroy();
    // The last curve is drawn first, so that the areas of a stack cover those below them.
    const order = data.curves.map((_, i) => i).reverse();
    const axis = (unit: Curves["unit"], side: number): uPlot.Axis => ({
      stroke: colour("soft"),
      grid: { stroke: colour("rule"), width: 1 },
      ticks: { stroke: colour("rule"), width: 1 },
      font: "11px system-ui, sans-serif",
      size: side ? 66 : 34,
      ...increments(unit, side ? own : [data.x]),
      values: (_, ticks) => ticks.map((tick) => (unit === "" && side === 0 ? String(tick) : written(tick, unit))),
    });
    plot = new uPlot(
      {
        width: stage.clientWidth,
        height: HEIGHT,
        scales: { x: { time: false, range: stepped === "around" ? (_, low, high) => [low - 0.5, high + 0.5] : undefined }, y: { range: (u, low, high) => bounds(low, highest(u, high), data.from_zero) } },
        axes: [{ ...axis(data.x_unit, 0), label: data.x_name, labelSize: 18, labelFont: "11px system-ui, sans-serif" }, axis(data.unit, 1)],
        cursor: { drag: { x: true, y: false }, points: { show: !data.stacked } },
        legend: { live: true },
        series: [
          { label: data.x_name, value: (_, value) => (value === null ? "" : written(value, data.x_unit)) },
          ...order.map((i): uPlot.Series => {
            const stroke = kindColour(data.curves[i]!.kind, i);
            return {
              label: data.curves[i]!.name,
              show: !hidden[i],
              stroke,
              fill: data.stacked ? stroke : undefined,
              width: data.stacked ? 0 : 1.5,
              points: { show: data.x.length < 3 },
              paths: stepped === "after" ? uPlot.paths.stepped!({ align: 1 }) : stepped ? bars : undefined,
              value: (_, __, ___, index) => (index === null ? "" : written(own[i]![index], data.unit)),
            };
          }),
        ],
        hooks: { drawClear: [(u) => shade(u, data)], draw: [(u) => markAll(u, data)] },
      },
      [data.x, ...order.map((i) => rows[i]!)] as uPlot.AlignedData,
      stage,
    );
    legendByKeys(plot);
  });
  byKeys(stage, data, () => plot);
}

/** Lets arrow keys move the cursor from point to point, as the pointer does. */
function byKeys(stage: HTMLElement, data: Curves, plot: () => uPlot | null): void {
  stage.tabIndex = 0;
  stage.setAttribute("role", "group");
  stage.setAttribute("aria-label", `${data.title}. Arrow keys go from point to point.`);
  stage.addEventListener("keydown", (press) => {
    const shown = plot();
    const last = data.x.length - 1;
    if (!shown || press.target !== stage || last < 0) return;
    const at = shown.cursor.idx ?? -1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: last }[press.key];
    if (to === undefined) return;
    press.preventDefault();
    const index = Math.min(Math.max(to, 0), last);
    shown.setCursor({ left: shown.valToPos(data.x[index]!, "x"), top: shown.over.clientHeight / 2 });
  });
}

/** Lets keys hide and show a curve, as a click on its name does. */
function legendByKeys(plot: uPlot): void {
  plot.root.querySelectorAll<HTMLElement>(".u-legend .u-series:not(:first-child) th").forEach((name) => {
    name.tabIndex = 0;
    name.setAttribute("role", "button");
    name.addEventListener("keydown", (press) => {
      if (press.key !== "Enter" && press.key !== " ") return;
      press.preventDefault();
      name.click();
    });
  });
}

/** Shades the ranges that have a meaning of their own, such as the warm-up. */
function shade(plot: uPlot, data: Curves): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = colour("shade");
  for (const band of data.bands) {
    const from = plot.valToPos(band.start, "x", true);
    const to = plot.valToPos(band.end, "x", true);
    ctx.fillRect(from, bbox.top, to - from, bbox.height);
  }
  ctx.restore();
}

function markAll(plot: uPlot, data: Curves): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.fillStyle = colour("soft");
  ctx.strokeStyle = colour("soft");
  ctx.setLineDash([4, 3]);
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  for (const band of data.bands) {
    const from = Math.max(plot.valToPos(band.start, "x", true), bbox.left);
    const room = Math.min(plot.valToPos(band.end, "x", true), bbox.left + bbox.width) - from;
    if (ctx.measureText(band.text).width + 8 < room) ctx.fillText(band.text, from + 4, bbox.top + 3);
  }
  for (const mark of data.marks) {
    const x = plot.valToPos(mark.at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const isLate = x > bbox.left + 0.7 * bbox.width;
    ctx.textAlign = isLate ? "right" : "left";
    ctx.fillText(mark.text, x + (isLate ? -4 : 4), bbox.top + 3);
  }
  ctx.restore();
}

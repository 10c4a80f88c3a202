// Curves over one axis, drawn by uPlot: lines, or areas that stand on each other.

import uPlot from "uplot";
import type { Curves } from "./data";
import { colour, kindColour, whenShown } from "./theme";
import { written } from "./units";

const HEIGHT = 240;

/** Returns each curve added to those below it. */
function stacked(rows: (number | null)[][]): (number | null)[][] {
  const sum: number[] = [];
  return rows.map((row) => row.map((value, i) => (sum[i] = (sum[i] ?? 0) + (value ?? 0))));
}

export function drawCurves(stage: HTMLElement, data: Curves): void {
  const own = data.curves.map((curve) => curve.values);
  const rows = data.stacked ? stacked(own) : own;
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
      values: (_, ticks) => ticks.map((tick) => (unit === "" && side === 0 ? String(tick) : written(tick, unit))),
    });
    plot = new uPlot(
      {
        width: stage.clientWidth,
        height: HEIGHT,
        scales: { x: { time: false }, y: { range: (u, low, high) => [Math.min(0, low), 1.05 * highest(u, high) || 1] } },
        axes: [{ ...axis(data.x_unit, 0), label: data.x_name, labelSize: 18, labelFont: "11px system-ui, sans-serif" }, axis(data.unit, 1)],
        cursor: { drag: { x: true, y: false }, points: { show: !data.stacked } },
        legend: { live: true },
        series: [
          { label: data.x_name, value: (_, value) => written(value, data.x_unit) },
          ...order.map((i): uPlot.Series => {
            const stroke = kindColour(data.curves[i]!.kind, i);
            return {
              label: data.curves[i]!.name,
              show: !hidden[i],
              stroke,
              fill: data.stacked ? stroke : undefined,
              width: data.stacked ? 0 : 1.5,
              points: { show: data.x.length < 3 },
              paths: data.stepped ? uPlot.paths.stepped!({ align: 1 }) : undefined,
              value: (_, __, ___, index) => (index === null ? "–" : written(own[i]![index], data.unit)),
            };
          }),
        ],
        hooks: { drawClear: [(u) => shade(u, data)], draw: [(u) => markAll(u, data)] },
      },
      [data.x, ...order.map((i) => rows[i]!)] as uPlot.AlignedData,
      stage,
    );
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

// A roofline: the rate of operators, modules or kernels over their intensity, below the ceilings of the device.

import { canvasIn, searchBox, switchOf, toolsAbove } from "./controls";
import type { Roof, Roofline, RooflinePoint } from "./data";
import { showRow } from "./tables";
import { colour, context, whenShown } from "./theme";
import { hideTip, showTip } from "./tip";
import { duration, written } from "./units";

const EDGE = { left: 92, right: 16, top: 22, bottom: 44 };
const MIN_RADIUS = 3, MAX_RADIUS = 13;
const REACH = 6;
const NAMED = 6;

type Kind = "compute" | "memory" | "overhead" | "";
const KINDS: Record<Kind, { colour: string; text: string }> = {
  compute: { colour: "c1", text: "compute-bound" },
  memory: { colour: "c2", text: "memory-bound" },
  overhead: { colour: "c4", text: "overhead-bound" },
  "": { colour: "c8", text: "no ceiling known" },
};

interface Placed {
  point: RooflinePoint;
  x: number;
  y: number;
  radius: number;
}

interface Scale {
  x: (intensity: number) => number;
  y: (rate: number) => number;
  low: [number, number];
  high: [number, number];
  right: number;
  bottom: number;
}

export function drawRoofline(stage: HTMLElement, data: Roofline): void {
  const groups = data.groups.filter((group) => group.points.length);
  if (!groups.length) return;
  let group = groups[0]!;
  let wanted = "";
  let current = -1;
  let placed: Placed[] = [];
  const tools = toolsAbove(stage);
  const box = searchBox(tools, `filter ${group.name}`, (text) => {
    wanted = text;
    draw();
  });
  switchOf(tools, groups.map((one) => `${one.name} (${one.points.length})`), (index) => {
    group = groups[index]!;
    current = -1;
    box.placeholder = `filter ${group.name}`;
    draw();
  });
  const canvas = canvasIn(stage, `${data.title}. Arrow keys go from one point to the next, Enter shows its row of the table.`);
  const legend = document.createElement("div");
  legend.className = "legend";
  stage.append(legend);

  const isShown = (point: RooflinePoint) =>
    !wanted || wanted.split(/\s+/).every((word) => `${point.name} ${(point.notes ?? []).join(" ")} ${KINDS[point.kind ?? ""].text}`.toLowerCase().includes(word));

  const draw = () => {
    const width = stage.clientWidth;
    if (width <= 0) return;
    const height = Math.max(300, Math.min(460, width * 0.5));
    const ctx = context(canvas, width, height);
    const points = group.points;
    const scale = scaleOf(points, data.roofs, width, height);
    axes(ctx, scale, width, height);
    roofs(ctx, data.roofs, scale);
    const most = Math.max(...points.map((point) => point.share), 1e-9);
    placed = points.filter(isShown).map((point) => place(point, scale, data.roofs, most));
    for (const one of placed) mark(ctx, one, false);
    const taken = roofNames(ctx, data.roofs, scale);
    names(ctx, placed, width, taken);
    if (placed[current]) mark(ctx, placed[current]!, true);
    const kinds = (Object.keys(KINDS) as Kind[]).filter((kind) => points.some((point) => (point.kind ?? "") === kind));
    legend.replaceChildren(...kinds.map((kind) => entry(kind, points)));
  };

  const tip = (one: Placed, x: number, y: number) => {
    const { point } = one;
    const kind = KINDS[point.kind ?? ""].text;
    const roof = point.attained === null || point.attained === undefined ? kind : `${written(point.attained, "share")} of its roof, ${kind}`;
    const time = point.ns ? `${duration(point.ns)}, ${written(point.share, "share")} of the time` : "";
    const rate = point.is_bound ? `${written(point.rate, "FLOP/s")} at most: not timed` : written(point.rate, "FLOP/s");
    showTip(x, y, [point.name, time, roof, point.intensity ? `${written(point.intensity, "FLOP/B")}, ${rate}` : "no arithmetic", ...(point.notes ?? [])]);
  };
  const nearest = (x: number, y: number) => {
    let best = -1, least = Infinity;
    placed.forEach((one, i) => {
      const away = Math.hypot(one.x - x, one.y - y) - one.radius;
      if (away < REACH && away < least) [best, least] = [i, away];
    });
    return best;
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = nearest(event.offsetX, event.offsetY);
    if (found !== current) {
      current = found;
      draw();
    }
    canvas.style.cursor = found < 0 ? "" : "pointer";
    if (found < 0) hideTip();
    else tip(placed[found]!, event.clientX, event.clientY);
  });
  const leave = () => {
    current = -1;
    hideTip();
    draw();
  };
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  const choose = () => {
    const one = placed[current];
    if (one) showRow(canvas, [one.point.name, one.point.row ?? ""]);
  };
  canvas.addEventListener("click", choose);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") choose();
    else if (event.key === "Escape") leave();
    else if (step && placed.length) {
      current = current < 0 ? 0 : (current + step + placed.length) % placed.length;
      draw();
      const at = canvas.getBoundingClientRect(), one = placed[current]!;
      tip(one, at.left + one.x, at.top + one.y);
    } else return;
    event.preventDefault();
  });
  whenShown(stage, draw);
}

function scaleOf(points: RooflinePoint[], all: Roof[], width: number, height: number): Scale {
  const log = Math.log10;
  const real = points.filter((point) => point.intensity > 0 && point.rate > 0);
  const compute = all.filter((roof) => roof.kind === "compute").map((roof) => roof.value);
  const memory = all.filter((roof) => roof.kind === "memory").map((roof) => roof.value);
  const ridges = compute.flatMap((peak) => memory.map((slope) => peak / slope));
  const xs = [...real.map((point) => point.intensity), ...ridges].map(log);
  const ys = [...real.map((point) => point.rate), ...compute].map(log);
  const left = Math.min(...xs, 0) - 0.4, right = Math.max(...xs, 1) + 0.6;
  let low = Math.min(...ys) - 0.3;
  const high = Math.max(...ys) + 0.35;
  if (!Number.isFinite(low)) low = high - 4;
  const inner = width - EDGE.left - EDGE.right, tall = height - EDGE.top - EDGE.bottom;
  return {
    x: (value) => EDGE.left + ((log(value) - left) / (right - left)) * inner,
    y: (value) => EDGE.top + ((high - log(value)) / (high - low)) * tall,
    low: [10 ** left, 10 ** low], high: [10 ** right, 10 ** high],
    right: width - EDGE.right, bottom: height - EDGE.bottom,
  };
}

function axes(ctx: CanvasRenderingContext2D, scale: Scale, width: number, height: number): void {
  ctx.clearRect(0, 0, width, height);
  ctx.font = "11px system-ui, sans-serif";
  ctx.strokeStyle = colour("rule");
  ctx.fillStyle = colour("soft");
  ctx.lineWidth = 1;
  const decades = (low: number, high: number) => {
    const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
    return Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => 10 ** (first + i));
  };
  ctx.textAlign = "center";
  for (const value of decades(scale.low[0], scale.high[0])) {
    const x = Math.round(scale.x(value)) + 0.5;
    line(ctx, [[x, EDGE.top], [x, scale.bottom]]);
    ctx.fillText(value < 0.001 ? value.toExponential(0) : String(Number(value.toPrecision(1))), x, scale.bottom + 16);
  }
  ctx.textAlign = "right";
  for (const value of decades(scale.low[1], scale.high[1])) {
    const y = Math.round(scale.y(value)) + 0.5;
    line(ctx, [[EDGE.left, y], [scale.right, y]]);
    ctx.fillText(written(value, "FLOP/s"), EDGE.left - 8, y + 4);
  }
  ctx.textAlign = "center";
  ctx.fillText("intensity, FLOP for each byte moved", (EDGE.left + scale.right) / 2, scale.bottom + 34);
}

function line(ctx: CanvasRenderingContext2D, points: [number, number][]): void {
  ctx.beginPath();
  points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.stroke();
}

/** Writes a text that can be read over lines and marks. */
function lettered(ctx: CanvasRenderingContext2D, text: string, x: number, y: number): void {
  ctx.save();
  ctx.setLineDash([]);
  ctx.strokeStyle = colour("paper");
  ctx.lineWidth = 3;
  ctx.lineJoin = "round";
  ctx.strokeText(text, x, y);
  ctx.fillText(text, x, y);
  ctx.restore();
}

/** Draws slopes up to the highest flat, and flats from their ridge on. What was measured is solid, a datasheet's dashed, a doubtful one dotted. */
function roofs(ctx: CanvasRenderingContext2D, all: Roof[], scale: Scale): void {
  const slopes = all.filter((roof) => roof.kind === "memory"), flats = all.filter((roof) => roof.kind === "compute");
  const peak = Math.max(...flats.map((roof) => roof.value), 0) || scale.high[1];
  const slope = Math.max(...slopes.map((roof) => roof.value), 0);
  ctx.save();
  ctx.beginPath();
  ctx.rect(EDGE.left, 0, scale.right - EDGE.left, scale.bottom);
  ctx.clip();
  const style = (roof: Roof) => {
    const kind = roof.kind === "compute" ? "c1" : "c2";
    ctx.strokeStyle = ctx.fillStyle = colour(kind);
    ctx.setLineDash(roof.is_doubtful ? [2, 4] : roof.source === "datasheet" ? [8, 5] : []);
    ctx.lineWidth = roof.source === "measured" && !roof.is_doubtful ? 2 : 1.5;
  };
  for (const roof of [...flats].sort((a, b) => b.value - a.value)) {
    style(roof);
    const from = slope ? Math.max(roof.value / slope, scale.low[0]) : scale.low[0];
    const y = scale.y(roof.value);
    line(ctx, [[scale.x(from), y], [scale.right, y]]);
  }
  for (const roof of slopes) {
    style(roof);
    const [from, to] = slopeOf(roof, peak, scale);
    line(ctx, [from, to]);
  }
  ctx.restore();
  ctx.setLineDash([]);
  const main = flats.find((roof) => !roof.is_doubtful) ?? flats[0];
  if (!main || !slope) return;
  const ridge = main.value / slope, x = scale.x(ridge);
  ctx.strokeStyle = ctx.fillStyle = colour("ink");
  ctx.lineWidth = 1;
  ctx.setLineDash([1, 4]);
  line(ctx, [[x, scale.y(main.value)], [x, scale.bottom]]);
  ctx.setLineDash([]);
}

type Spot = [x: number, y: number];
/** A line of text that stands somewhere already: its left end, its height, its length. */
type Taken = [x: number, y: number, long: number];

/** Returns the ends of a slope, up to the highest flat. */
function slopeOf(roof: Roof, peak: number, scale: Scale): [Spot, Spot] {
  const start = Math.max(scale.low[0], scale.low[1] / roof.value), end = Math.min(peak / roof.value, scale.high[0]);
  return [[scale.x(start), scale.y(start * roof.value)], [scale.x(end), scale.y(end * roof.value)]];
}

/** Names the roofs and the ridge above the marks; returns where the texts stand. */
function roofNames(ctx: CanvasRenderingContext2D, all: Roof[], scale: Scale): Taken[] {
  const slopes = all.filter((roof) => roof.kind === "memory"), flats = all.filter((roof) => roof.kind === "compute");
  const peak = Math.max(...flats.map((roof) => roof.value), 0) || scale.high[1];
  const said = (roof: Roof) =>
    `${roof.name} ${written(roof.value, roof.kind === "compute" ? "FLOP/s" : "B/s")}, ${roof.is_doubtful ? "measured on a busy machine" : roof.source}`;
  const taken: Taken[] = [];
  ctx.font = "11px system-ui, sans-serif";
  for (const roof of [...flats].sort((a, b) => b.value - a.value)) {
    ctx.fillStyle = colour("c1");
    ctx.textAlign = "right";
    const y = scale.y(roof.value), long = ctx.measureText(said(roof)).width;
    const at = taken.some(([, other]) => Math.abs(other - (y - 5)) < 12) ? y + 13 : y - 5;
    taken.push([scale.right - 4 - long, at, long]);
    lettered(ctx, said(roof), scale.right - 4, at);
  }
  slopes.forEach((roof, number) => {
    const [[x0, y0], [x1, y1]] = slopeOf(roof, peak, scale);
    ctx.save();
    ctx.fillStyle = colour("c2");
    ctx.textAlign = "left";
    ctx.translate(x0 + (x1 - x0) * 0.3, y0 + (y1 - y0) * 0.3);
    ctx.rotate(Math.atan2(y1 - y0, x1 - x0));
    lettered(ctx, said(roof), 0, number % 2 ? 14 : -6);
    ctx.restore();
  });
  const main = flats.find((roof) => !roof.is_doubtful) ?? flats[0];
  const slope = Math.max(...slopes.map((roof) => roof.value), 0);
  if (!main || !slope) return taken;
  const ridge = main.value / slope, x = scale.x(ridge), isLate = x > scale.right - 150;
  ctx.fillStyle = colour("ink");
  ctx.textAlign = isLate ? "right" : "left";
  lettered(ctx, `ridge of ${main.name}: ${written(ridge, "FLOP/B")}`, x + (isLate ? -5 : 5), scale.bottom - 6);
  return taken;
}

function place(point: RooflinePoint, scale: Scale, all: Roof[], most: number): Placed {
  const radius = Math.max(MIN_RADIUS, MAX_RADIUS * Math.sqrt(Math.max(point.share, 0) / most));
  const slope = Math.max(...all.filter((roof) => roof.kind === "memory").map((roof) => roof.value), 0);
  let { intensity, rate } = point;
  if (!(intensity > 0 && rate > 0)) {
    // Without arithmetic it stands at the left edge, as far below the slope as its bandwidth is.
    intensity = scale.low[0] * 1.25;
    rate = Math.max((point.attained ?? 0.01) * slope * intensity, scale.low[1] * 1.2);
  }
  const y = Math.min(Math.max(scale.y(rate), EDGE.top), scale.bottom);
  return { point, x: scale.x(intensity), y, radius };
}

function shape(ctx: CanvasRenderingContext2D, kind: Kind, x: number, y: number, radius: number): void {
  ctx.beginPath();
  if (kind === "compute") ctx.arc(x, y, radius, 0, 2 * Math.PI);
  else if (kind === "memory") ctx.rect(x - radius * 0.88, y - radius * 0.88, radius * 1.76, radius * 1.76);
  else {
    const corners = kind === "overhead" ? 3 : 4;
    for (let i = 0; i < corners; i++) {
      const angle = -Math.PI / 2 + (i * 2 * Math.PI) / corners;
      const [cx, cy] = [x + 1.15 * radius * Math.cos(angle), y + 1.15 * radius * Math.sin(angle)];
      if (i) ctx.lineTo(cx, cy);
      else ctx.moveTo(cx, cy);
    }
    ctx.closePath();
  }
}

function mark(ctx: CanvasRenderingContext2D, one: Placed, isChosen: boolean): void {
  const kind = one.point.kind ?? "";
  shape(ctx, kind, one.x, one.y, one.radius + (isChosen ? 2 : 0));
  ctx.fillStyle = colour(KINDS[kind].colour);
  ctx.globalAlpha = one.point.is_bound ? 0.12 : 0.55;
  ctx.fill();
  ctx.globalAlpha = 1;
  ctx.lineWidth = isChosen ? 2 : 1;
  ctx.strokeStyle = isChosen ? colour("ink") : colour(KINDS[kind].colour);
  ctx.stroke();
}

/** Names the longest points, where there is room. */
function names(ctx: CanvasRenderingContext2D, placed: Placed[], width: number, taken: Taken[]): void {
  ctx.fillStyle = colour("ink");
  ctx.font = "11px system-ui, sans-serif";
  let left = NAMED;
  for (const one of [...placed].sort((a, b) => b.point.share - a.point.share)) {
    if (!left || one.point.share < 0.02) break;
    const whole = one.point.name.split(" / ").pop()!.replace(/^aten::/, "");
    const text = whole.length > 28 ? `${whole.slice(0, 27)}…` : whole;
    const long = ctx.measureText(text).width;
    const isLate = one.x + one.radius + 6 + long > width - EDGE.right;
    const x = isLate ? one.x - one.radius - 5 - long : one.x + one.radius + 5;
    const y = one.y + 4;
    if (x < EDGE.left || taken.some(([tx, ty, tl]) => Math.abs(ty - y) < 12 && x < tx + tl && tx < x + long)) continue;
    taken.push([x, y, long]);
    ctx.textAlign = "left";
    lettered(ctx, text, x, y);
    left--;
  }
}

function entry(kind: Kind, points: RooflinePoint[]): HTMLElement {
  const item = document.createElement("span");
  const canvas = document.createElement("canvas");
  const ctx = context(canvas, 14, 14);
  shape(ctx, kind, 7, 7, 5);
  ctx.fillStyle = colour(KINDS[kind].colour);
  ctx.fill();
  const share = points.filter((point) => (point.kind ?? "") === kind).reduce((sum, point) => sum + point.share, 0);
  const whole = points.reduce((sum, point) => sum + point.share, 0);
  // Models side by side are no parts of one whole.
  item.append(canvas, whole > 1.01 ? KINDS[kind].text : `${KINDS[kind].text}, ${written(share, "share")} of the time`);
  return item;
}

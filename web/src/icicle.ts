// A tree as an icicle: the width of a node is its share of its parent, callers or modules stand above what they hold.

import { canvasIn, searchBox, switchOf, toolsAbove } from "./controls";
import type { Icicle } from "./data";
import { colour, context, whenShown } from "./theme";
import { hideTip, showTip } from "./tip";
import { written } from "./units";

const ROW = 21;
const MIN_WIDTH = 0.7;
const MIN_TEXT_WIDTH = 26;
const SHADES = ["c6", "c3", "c7", "c5", "c8"];

interface Box {
  node: number;
  x: number;
  y: number;
  width: number;
}

export function drawIcicle(stage: HTMLElement, data: Icicle): void {
  const own = new Set(data.set_off);
  const children: number[][] = data.names.map(() => []);
  const outermost: number[] = [];
  data.parents.forEach((parent, node) => (parent < 0 ? outermost : children[parent]!).push(node));
  const measures = data.measures.filter((one) => one.values.some((value) => value > 0));
  if (!measures.length) return;
  let measure = measures[0]!;
  let focus = -1;
  let chosen = -1;
  let wanted = "";
  let boxes: Box[] = [];

  const tools = toolsAbove(stage);
  searchBox(tools, "search", (text) => {
    wanted = text;
    draw();
  });
  switchOf(tools, measures.map((one) => one.name), (index) => {
    measure = measures[index]!;
    focus = chosen = -1;
    draw();
  });
  const trail = document.createElement("nav");
  trail.className = "trail";
  trail.setAttribute("aria-label", "where the figure is");
  tools.append(trail);
  stage.classList.add("tall");
  const canvas = canvasIn(stage, `${data.title}. Arrow keys walk the tree, Enter zooms in, Escape zooms out.`);

  const inside = (node: number) => (node < 0 ? outermost : children[node]!);
  const valueOf = (node: number) => (node < 0 ? outermost.reduce((sum, one) => sum + measure.values[one]!, 0) : measure.values[node]!);
  const path = (node: number): number[] => (node < 0 ? [] : [...path(data.parents[node]!), node]);
  const isFound = (node: number) => node >= 0 && wanted !== "" && data.names[node]!.toLowerCase().includes(wanted);

  /** Returns the boxes that are wide enough to be seen, from the focus down. */
  const layOut = (width: number): Box[] => {
    const found: Box[] = [];
    const add = (node: number, x: number, y: number, wide: number) => {
      if (wide < MIN_WIDTH) return;
      found.push({ node, x, y, width: wide });
      const whole = Math.max(valueOf(node), inside(node).reduce((sum, one) => sum + valueOf(one), 0)) || 1;
      let at = x;
      for (const child of [...inside(node)].sort((a, b) => valueOf(b) - valueOf(a))) {
        const share = (wide * valueOf(child)) / whole;
        add(child, at, y + ROW, share);
        at += share;
      }
    };
    const above = path(focus).slice(0, -1);
    [-1, ...above].forEach((node, i) => focus >= 0 && found.push({ node, x: 0, y: i * ROW, width }));
    add(focus, 0, focus < 0 ? 0 : (above.length + 1) * ROW, width);
    return found;
  };

  const nameOf = (node: number) => (node < 0 ? data.whole : data.names[node]!);
  const fillOf = (node: number) => {
    if (node < 0) return colour("shade");
    if (own.size) return own.has(node) ? colour("c1") : colour("bar");
    const top = path(node)[1] ?? path(node)[0]!;
    return colour(SHADES[top % SHADES.length]!);
  };

  const draw = () => {
    const width = stage.clientWidth;
    if (width <= 0) return;
    boxes = layOut(width);
    const height = Math.max(...boxes.map((box) => box.y)) + ROW + 1;
    const ctx = context(canvas, width, height);
    ctx.clearRect(0, 0, width, height);
    ctx.textBaseline = "middle";
    for (const box of boxes) {
      const dim = wanted !== "" && !isFound(box.node);
      ctx.globalAlpha = dim ? 0.25 : box.node >= 0 && own.size && !own.has(box.node) ? 0.6 : 0.85;
      ctx.fillStyle = isFound(box.node) ? colour("c5") : fillOf(box.node);
      ctx.fillRect(box.x, box.y, Math.max(box.width - 1, MIN_WIDTH), ROW - 1);
      ctx.globalAlpha = 1;
      if (box.node === chosen && document.activeElement === canvas) {
        ctx.strokeStyle = colour("ink");
        ctx.lineWidth = 2;
        ctx.strokeRect(box.x + 1, box.y + 1, Math.max(box.width - 3, 1), ROW - 3);
      }
      if (box.width < MIN_TEXT_WIDTH) continue;
      ctx.save();
      ctx.beginPath();
      ctx.rect(box.x, box.y, box.width - 4, ROW);
      ctx.clip();
      const isDark = own.has(box.node) && !dim && !isFound(box.node);
      ctx.font = `${own.has(box.node) ? "600 " : ""}11.5px system-ui, sans-serif`;
      ctx.fillStyle = isDark ? "#fff" : isFound(box.node) ? "#000" : colour("ink");
      ctx.fillText(nameOf(box.node), box.x + 5, box.y + ROW / 2);
      ctx.restore();
    }
    follow();
  };

  const follow = () => {
    const parts = [-1, ...path(focus)];
    trail.replaceChildren(
      ...(focus < 0 ? [] : parts).map((node, i) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "link";
        button.textContent = nameOf(node);
        button.disabled = i === parts.length - 1;
        button.addEventListener("click", () => zoom(node));
        return button;
      }),
    );
    if (wanted) {
      const found = data.names.map((_, node) => node).filter((node) => isFound(node) && !path(node).slice(0, -1).some(isFound));
      const share = found.reduce((sum, node) => sum + valueOf(node), 0) / (valueOf(-1) || 1);
      const note = document.createElement("span");
      note.className = "soft";
      note.textContent = `found in ${written(share, "share")}`;
      trail.append(note);
    }
  };
  const zoom = (node: number) => {
    focus = node;
    chosen = node;
    hideTip();
    draw();
  };
  const tip = (node: number, x: number, y: number) => {
    const value = valueOf(node);
    const whole = value / (valueOf(-1) || 1);
    const self = value - inside(node).reduce((sum, one) => sum + valueOf(one), 0);
    const lines = [nameOf(node), node < 0 ? "" : (data.notes[node] ?? ""), `${measure.name}: ${written(value, measure.unit)}, ${written(whole, "share")} of all`];
    if (inside(node).length && self > 0) lines.push(`itself: ${written(self, measure.unit)}`);
    for (const other of measures) {
      if (other !== measure && node >= 0) lines.push(`${other.name}: ${written(other.values[node]!, other.unit)}`);
    }
    if (own.has(node)) lines.push(data.set_off_name);
    showTip(x, y, lines);
  };
  const at = (event: MouseEvent) => boxes.find((box) => event.offsetX >= box.x && event.offsetX < box.x + box.width && event.offsetY >= box.y && event.offsetY < box.y + ROW);

  canvas.addEventListener("pointermove", (event) => {
    const box = at(event);
    canvas.style.cursor = box ? "pointer" : "";
    if (box) tip(box.node, event.clientX, event.clientY);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("focus", () => draw());
  canvas.addEventListener("blur", () => {
    hideTip();
    draw();
  });
  canvas.addEventListener("click", (event) => {
    const box = at(event);
    if (box) zoom(box.node);
  });
  canvas.addEventListener("keydown", (event) => {
    const beside = (step: number) => {
      const line = [...inside(chosen < 0 ? -1 : data.parents[chosen]!)].sort((a, b) => valueOf(b) - valueOf(a));
      return line[line.indexOf(chosen) + step] ?? chosen;
    };
    const heaviest = () => [...inside(chosen)].sort((a, b) => valueOf(b) - valueOf(a))[0] ?? chosen;
    if (event.key === "Escape") return focus < 0 ? hideTip() : zoom(data.parents[focus]!);
    if (event.key === "Enter") zoom(chosen);
    else if (event.key === "ArrowDown") chosen = heaviest();
    else if (event.key === "ArrowUp") chosen = chosen < 0 ? -1 : data.parents[chosen]!;
    else if (event.key === "ArrowRight") chosen = beside(1);
    else if (event.key === "ArrowLeft") chosen = beside(-1);
    else return;
    event.preventDefault();
    if (!boxes.some((box) => box.node === chosen)) focus = chosen < 0 ? -1 : data.parents[chosen]!;
    draw();
    const box = boxes.find((one) => one.node === chosen);
    const corner = canvas.getBoundingClientRect();
    if (box) tip(chosen, corner.left + box.x + 8, corner.top + box.y + ROW);
  });
  whenShown(stage, draw);
}

// Samples of a comparison: the static strips, all variants over each other, and how they are distributed.

import { switchOf, toolsAbove } from "./controls";
import { drawCurves } from "./curves";
import type { Curves, Samples } from "./data";

const FAR = 3;
const FEWEST_BINS = 8, MOST_BINS = 60;

function quantile(ordered: number[], share: number): number {
  return ordered[Math.round(share * (ordered.length - 1))] ?? NaN;
}

function plot(title: string, more: Partial<Curves> & Pick<Curves, "x" | "x_name" | "curves">): Curves {
  return { title, x_unit: "", unit: "", stacked: false, stepped: false, marks: [], bands: [], ...more } as Curves;
}

/** Returns each variant's times over the rounds, on one scale. */
function overRounds(data: Samples): Curves {
  const most = Math.max(...data.strips.map((strip) => strip.samples_ns.length));
  const curves = data.strips.map((strip) => ({ name: strip.name, kind: "", values: strip.samples_ns.map((ns) => (ns > 0 ? ns : null)) }));
  for (const curve of curves) while (curve.values.length < most) curve.values.push(null);
  return plot("times over the rounds", { x: Array.from({ length: most }, (_, i) => i + 1), x_name: "round", unit: "ns", curves });
}

/** Returns the share of samples of each variant that took at most so long. */
function cumulative(data: Samples): Curves {
  const known = data.strips.map((strip) => strip.samples_ns.filter((ns) => ns > 0).sort((a, b) => a - b));
  const x = [...new Set(known.flat())].sort((a, b) => a - b);
  const curves = data.strips.map((strip, i) => {
    let place = 0;
    const own = known[i]!;
    return {
      name: strip.name, kind: "",
      values: x.map((at) => {
        while (place < own.length && own[place]! <= at) place++;
        return own.length ? place / own.length : null;
      }),
    };
  });
  return plot("share of samples that took at most so long", { x, x_name: "time", x_unit: "ns", unit: "share", stepped: "after" as const, curves });
}

/** Returns how many samples of each variant lie in each range of times; those far out are in the last one. */
function histogram(data: Samples): Curves {
  const known = data.strips.map((strip) => strip.samples_ns.filter((ns) => ns > 0));
  const all = known.flat().sort((a, b) => a - b);
  const low = all[0]!, spread = quantile(all, 0.75) - quantile(all, 0.25);
  const high = Math.min(all[all.length - 1]!, quantile(all, 0.75) + FAR * spread || Infinity);
  const bins = Math.min(Math.max(Math.round(2 * Math.sqrt(all.length / known.length)), FEWEST_BINS), MOST_BINS);
  const width = (high - low) / bins || 1;
  const x = Array.from({ length: bins + 1 }, (_, i) => low + i * width);
  const curves = data.strips.map((strip, i) => {
    const counts: (number | null)[] = new Array(bins + 1).fill(0);
    for (const ns of known[i]!) {
      const bin = Math.min(Math.floor((ns - low) / width), bins - 1);
      counts[bin] = counts[bin]! + 1;
    }
    counts[bins] = counts[bins - 1]!;
    return { name: strip.name, kind: "", values: counts };
  });
  return plot("samples by their time", { x, x_name: "time", x_unit: "ns", unit: "count", stepped: "after" as const, curves });
}

export function drawSamples(stage: HTMLElement, data: Samples): void {
  const strips = document.createElement("div");
  strips.className = "scroll";
  strips.append(...stage.childNodes);
  stage.append(strips);
  if (data.strips.every((strip) => !strip.samples_ns.some((ns) => ns > 0))) return;
  const makers = [overRounds, cumulative, histogram];
  const views: HTMLElement[] = [strips];
  const names = ["each variant on its own scale", "over each other", "cumulative", "histogram"];
  switchOf(toolsAbove(stage), names, (chosen) => {
    if (!views[chosen]) {
      const view = document.createElement("div");
      views[chosen] = view;
      stage.append(view);
      drawCurves(view, makers[chosen - 1]!(data));
    }
    views.forEach((view, i) => (view.hidden = i !== chosen));
  });
}

/** Shows the title of a shape in a static picture as the page's own tip. */
export function tipsOfPictures(show: (x: number, y: number, lines: string[]) => void, hide: () => void): void {
  for (const title of document.querySelectorAll("figure svg title")) {
    const shape = title.parentElement;
    if (!shape || shape instanceof SVGSVGElement) continue;
    const text = title.textContent ?? "";
    title.remove();
    shape.setAttribute("aria-label", text);
    shape.classList.add("told");
    shape.addEventListener("pointermove", (event) => show((event as PointerEvent).clientX, (event as PointerEvent).clientY, [text]));
    shape.addEventListener("pointerleave", hide);
  }
}

// Colours as the style sheet has them, for canvases, which style sheets do not reach.

/** Returns a colour of the style sheet by its name, such as "ink" or "forward". */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
}

const FREE = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];

/** Returns the colour of a kind of work; kinds without one of their own take turns. */
export function kindColour(kind: string, index: number): string {
  const style = getComputedStyle(document.documentElement);
  return (kind && style.getPropertyValue(`--k-${kind}`).trim()) || colour(FREE[index % FREE.length]!);
}

/** Calls `draw` now, and again when the figure's size or the colours change. */
export function whenShown(figure: HTMLElement, draw: () => void): void {
  let asked = false;
  const soon = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (figure.clientWidth > 0) draw();
    });
  };
  new ResizeObserver(soon).observe(figure);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
  soon();
}

/** Returns a context on the canvas in which one unit is one CSS pixel. */
export function context(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const density = devicePixelRatio || 1;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const drawing = canvas.getContext("2d")!;
  drawing.setTransform(density, 0, 0, density, 0, 0);
  drawing.font = "12px system-ui, sans-serif";
  return drawing;
}

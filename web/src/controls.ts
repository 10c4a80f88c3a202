// The controls above a canvas: a row of tools with a search box and a switch.

/** Puts a row for controls before the stage and returns it. */
export function toolsAbove(stage: HTMLElement): HTMLElement {
  const tools = document.createElement("div");
  tools.className = "tools above";
  stage.before(tools);
  return tools;
}

export function searchBox(tools: HTMLElement, what: string, changed: (text: string) => void): HTMLInputElement {
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = what;
  box.setAttribute("aria-label", what);
  box.addEventListener("input", () => changed(box.value.trim().toLowerCase()));
  tools.append(box);
  return box;
}

/** Adds a switch between several views; nothing where there is only one. */
export function switchOf(tools: HTMLElement, names: string[], chosen: (index: number) => void): void {
  if (names.length < 2) return;
  const group = document.createElement("span");
  group.className = "switch";
  group.setAttribute("role", "group");
  const buttons = names.map((name, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-pressed", String(index === 0));
    button.addEventListener("click", () => {
      buttons.forEach((other, i) => other.setAttribute("aria-pressed", String(i === index)));
      chosen(index);
    });
    return button;
  });
  group.append(...buttons);
  tools.append(group);
}

/** Returns a focusable canvas inside the stage. */
export function canvasIn(stage: HTMLElement, label: string): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  stage.replaceChildren(canvas);
  return canvas;
}

// The tip that stands beside the pointer. Its text is set as text: names are never read as HTML.

let box: HTMLElement | null = null;

/** Shows lines of text at a point of the window; the first line is set off. */
export function showTip(x: number, y: number, lines: string[]): void {
  if (!box) {
    box = document.createElement("div");
    box.className = "tip";
    box.setAttribute("role", "status");
    document.body.append(box);
  }
  box.replaceChildren(
    ...lines.filter(Boolean).map((line, i) => {
      const row = document.createElement(i ? "div" : "b");
      row.textContent = line;
      return row;
    }),
  );
  box.hidden = false;
  const left = Math.min(x + 14, innerWidth - box.offsetWidth - 8);
  const below = y + 18 + box.offsetHeight < innerHeight;
  box.style.left = `${Math.max(left, 8)}px`;
  box.style.top = `${below ? y + 18 : Math.max(y - box.offsetHeight - 10, 8)}px`;
}

export function hideTip(): void {
  if (box) box.hidden = true;
}

// Lines of source with their numbers; beside a line stands what was found there.

import type { SourceData } from "./data";
import { button } from "./event_facts";
import { canShow, show, shows, type Wanted } from "./links";

export function drawSource(stage: HTMLElement, data: SourceData): void {
  const pane = document.createElement("div");
  pane.className = "source";
  pane.tabIndex = 0;
  pane.setAttribute("role", "region");
  pane.setAttribute("aria-label", "source");
  const rows = new Map<string, HTMLElement>();
  const files = new Map<string, HTMLElement>();
  for (const part of data.parts) {
    let list = files.get(part.file);
    if (!list) {
      const title = document.createElement("h4");
      title.textContent = part.file;
      list = document.createElement("ol");
      pane.append(title, list);
      files.set(part.file, list);
    } else {
      const gap = document.createElement("li");
      gap.className = "gap";
      gap.textContent = "⋮";
      list.append(gap);
    }
    part.lines.forEach((text, i) => {
      const row = lineRow(part.first + i, text);
      rows.set(`${part.file}:${part.first + i}`, row);
      list.append(row);
    });
  }
  for (const mark of data.marks) {
    const row = rows.get(`${mark.file}:${mark.line}`);
    if (!row) continue;
    const note = document.createElement("span");
    note.className = `mark ${mark.kind}`;
    note.textContent = mark.text;
    row.classList.add(mark.kind);
    (mark.kind === "time" ? row.firstElementChild! : row).append(note);
    if (mark.share) row.style.setProperty("--share", String(mark.share));
  }
  // Whether a timeline knows the line can be asked only when all figures are drawn.
  requestAnimationFrame(() => {
    for (const mark of data.marks) {
      const place = `${mark.file}:${mark.line}`;
      const row = rows.get(place);
      if (mark.kind !== "finding" || !row || row.querySelector("button") || !canShow("timeline", { place })) continue;
      const link = button("on the timeline", "show the events of this function", () => show("timeline", { place }));
      link.className = "link";
      row.querySelector(".mark.finding")?.append(link);
    }
  });
  stage.append(pane);
  let pointed: HTMLElement | null = null;
  const rowOf = (wanted: Wanted) => (wanted.place ? rows.get(wanted.place) : undefined);
  shows(
    "source",
    (wanted) => {
      const row = rowOf(wanted);
      if (!row) return;
      stage.closest("figure")?.scrollIntoView({ block: "nearest" });
      pointed?.classList.remove("pointed");
      pointed = row;
      row.classList.add("pointed");
      pane.scrollTop = row.offsetTop - pane.clientHeight / 3;
      pane.focus({ preventScroll: true });
    },
    (wanted) => rowOf(wanted) !== undefined,
  );
}

function lineRow(number: number, text: string): HTMLElement {
  const row = document.createElement("li");
  row.value = number;
  const [gutter, code] = [document.createElement("span"), document.createElement("code")];
  gutter.className = "number";
  gutter.textContent = String(number);
  code.textContent = text || " ";
  const line = document.createElement("div");
  line.append(gutter, code);
  row.append(line);
  return row;
}

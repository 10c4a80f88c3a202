// Connects what a page shows: a finding to its place on the timeline, an event to its line of source.

/** What can be shown elsewhere on the page. */
export interface Wanted {
  /** A line of source, as "file:line". */
  place?: string;
  /** The function that the line is in, if it is known. */
  function?: string;
  /** Kinds of events, such as "input". */
  kinds?: string[];
  /** Text to search for. */
  text?: string;
}

type Listener = (wanted: Wanted) => void;
type Test = (wanted: Wanted) => boolean;

const listeners: Record<string, { listener: Listener; can: Test }[]> = {};

/** Registers who shows something, "timeline" or "source", and whether it can show something in particular. */
export function shows(where: string, listener: Listener, can: Test = () => true): void {
  (listeners[where] ??= []).push({ listener, can });
}

/** Returns whether anything on this page can show what is wanted. */
export function canShow(where: string, wanted: Wanted = {}): boolean {
  return (listeners[where] ?? []).some(({ can }) => can(wanted));
}

export function show(where: string, wanted: Wanted): void {
  for (const { listener } of listeners[where] ?? []) listener(wanted);
}

/** Gives each finding buttons that show its events and its line. */
export function linkFindings(): void {
  for (const finding of document.querySelectorAll<HTMLElement>("[data-place], [data-kinds]")) {
    const { place, function: name, kinds } = finding.dataset;
    const wanted: Wanted = { place, function: name, kinds: kinds?.split(",").filter(Boolean) };
    const row = document.createElement("p");
    row.className = "ways";
    for (const [where, text] of [["timeline", "on the timeline"], ["source", "in the source"]] as const) {
      if (!canShow(where, wanted)) continue;
      const link = document.createElement("button");
      link.type = "button";
      link.className = "link";
      link.dataset.way = where;
      link.textContent = text;
      link.addEventListener("click", () => show(where, wanted));
      row.append(link);
    }
    if (row.childElementCount) finding.querySelector("p")?.after(row);
  }
}

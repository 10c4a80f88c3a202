// Connects what a page shows: a finding to its place on the timeline, an event to its line of source.

/** What can be shown elsewhere on the page. */
export interface Wanted {
  /** A line of source, as "file:line". */
  place?: string;
  /** Kinds of events, such as "input". */
  kinds?: string[];
  /** Text to search for. */
  text?: string;
}

type Listener = (wanted: Wanted) => void;

const listeners: Record<string, Listener[]> = {};

/** Registers who shows something: "timeline" or "source". */
export function shows(where: string, listener: Listener): void {
  (listeners[where] ??= []).push(listener);
}

/** Returns whether anything on this page shows it. */
export function canShow(where: string): boolean {
  return where in listeners;
}

export function show(where: string, wanted: Wanted): void {
  for (const listener of listeners[where] ?? []) listener(wanted);
}

// What is known of an event: in short beside the pointer, in full below the timeline.

import { canShow, show } from "./links";
import type { Event, Tracks } from "./tracks";
import { duration } from "./units";

export function button(text: string, title: string, act: () => void): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.title = title;
  made.addEventListener("click", act);
  return made;
}

interface Acts {
  select: (event: Event) => void;
  markWork: (work: number) => void;
}

export class Facts {
  readonly panel = document.createElement("div");
  private place = "";

  constructor(private tracks: Tracks, private acts: Acts) {
    this.panel.className = "event";
    this.panel.setAttribute("aria-live", "polite");
    this.show(null);
  }

  /** Returns an event in a few lines, the name first. */
  lines({ track, index }: Event): string[] {
    const { tracks } = this;
    const work = track.work[index]!;
    return [
      track.lane.kind === "steps" ? `step ${tracks.name(work)}` : tracks.name(work),
      `${duration(track.end[index]! - track.start[index]!)} · ${tracks.kindName(work)}`,
      ...tracks.facts(work).map(([label, text]) => `${label}: ${text}`),
      [tracks.place_(work), tracks.functionOf(work)].filter(Boolean).join(" in "),
    ];
  }

  show(event: Event | null): void {
    this.place = "";
    if (!event) {
      const hint = document.createElement("p");
      hint.className = "soft";
      hint.textContent = "Click an event to see what it is and which line it came from.";
      return this.panel.replaceChildren(hint);
    }
    const { tracks } = this;
    const { track, index } = event;
    const work = track.work[index]!;
    const title = document.createElement("h4");
    title.textContent = this.lines(event)[0]!;
    const list = document.createElement("dl");
    const add = (label: string, ...values: (string | Node)[]) => {
      const [name, value] = [document.createElement("dt"), document.createElement("dd")];
      name.textContent = label;
      value.append(...values);
      list.append(name, value);
    };
    add("takes", `${duration(track.end[index]! - track.start[index]!)}, from ${duration(track.start[index]!)} on`);
    add("kind", `${tracks.kindName(work)}, on ${[track.group.name, track.name].filter(Boolean).join(", ")}`);
    const place = tracks.place_(work);
    if (place) add("place", ...this.placeParts(place, tracks.functionOf(work)));
    for (const [label, text] of tracks.facts(work)) add(label, text);
    const launch = tracks.launchOf(event);
    if (launch) add("launched", `${duration(launch.before)} before, by `, this.eventLink(launch.event));
    const launched = tracks.launchedBy(event);
    if (launched.length) {
      const wait = tracks.span(launched[0]!).start - track.start[index]!;
      add("launches", this.eventLink(launched[0]!), `, which starts ${duration(wait)} later${launched.length > 1 ? `, and ${launched.length - 1} more` : ""}`);
    }
    const { count, total, median } = tracks.alike(work);
    if (count > 1) {
      const all = button("mark them", "mark all events of this name", () => this.acts.markWork(work));
      all.className = "link";
      add("of this name", `${count.toLocaleString("en-US")} events, ${duration(total)} in all, median ${duration(median)} · `, all);
    }
    this.panel.replaceChildren(title, list);
  }

  private eventLink(event: Event): HTMLElement {
    const { track, index } = event;
    const name = this.tracks.name(track.work[index]!);
    const link = button(`${name} on ${track.name}`, "show this event", () => this.acts.select(event));
    link.className = "link";
    return link;
  }

  private placeParts(place: string, name: string): (string | Node)[] {
    const text = name ? `${place} in ${name}` : place;
    if (!canShow("source", { place })) return [text];
    this.place = place;
    const link = button(text, "show this line of source", () => this.followPlace());
    link.className = "link place";
    return [link];
  }

  /** Shows the selected event's line of source, if it is known. */
  followPlace(): void {
    if (this.place) show("source", { place: this.place });
  }
}

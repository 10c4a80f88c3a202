// The events of a timeline as typed arrays: where they lie, what they are, and how to find them.

import type { Lane, TimelineData } from "./data";

const GAP = 6;
/** What the report calls the code of a file outside all functions, before the file's name. */
const TOP_LEVEL = "the top level of ";
const GROUP = 20;
/** Lanes of several ranks are folded, but for those of the first. */
const MAX_OPEN_GROUPS = 1;
/** Deeper lanes begin folded where there are many. */
const MAX_OPEN_HEIGHT = 1400;

export interface Track {
  lane: Lane;
  name: string;
  about: string;
  start: Float64Array;
  end: Float64Array;
  depth: Uint8Array;
  work: Int32Array;
  kind: Uint8Array;
  marked: Uint8Array;
  /** For each depth its events, in order of start. */
  rows: Int32Array[];
  /** Height of a row. */
  row: number;
  folded: boolean;
  y: number;
  height: number;
  group: Group;
}

export interface Group {
  name: string;
  tracks: Track[];
  folded: boolean;
  y: number;
}

export interface Event {
  track: Track;
  index: number;
}

export class Tracks {
  readonly all: Track[];
  readonly groups: Group[] = [];
  readonly extent: [number, number];
  /** Those that are not in a folded group. */
  shown: Track[] = [];
  height = 0;
  private texts: (string | undefined)[] = [];
  private launchesOf = new Map<Group, { launched: Map<number, Event[]>; calls: Map<number, Event> }>();

  constructor(readonly data: TimelineData) {
    this.all = data.lanes.map((lane) => this.read(lane));
    const host = this.all.filter((track) => track.lane.kind === "host");
    let tall = this.all.reduce((sum, track) => sum + track.rows.length * track.row, 0);
    for (const track of host.slice(1).reverse()) {
      if (tall < MAX_OPEN_HEIGHT || track.rows.length < 3) continue;
      track.folded = true;
      tall -= (track.rows.length - 1) * track.row;
    }
    this.extent = [0, Math.max(data.length_ns, 1)];
    this.place();
  }

  private read(lane: Lane): Track {
    const count = lane.starts.length;
    const start = new Float64Array(count);
    const end = new Float64Array(count);
    const kind = new Uint8Array(count);
    const deepest = lane.depths.reduce((most, depth) => Math.max(most, depth), 0);
    const rows: number[][] = Array.from({ length: deepest + 1 }, () => []);
    let at = 0;
    for (let i = 0; i < count; i++) {
      at += lane.starts[i]!;
      start[i] = at;
      end[i] = at + lane.lengths[i]!;
      kind[i] = this.data.kinds[lane.works[i]!]!;
      rows[lane.depths[i]!]!.push(i);
    }
    let group = this.groups.find((one) => one.name === lane.group);
    if (!group) {
      group = { name: lane.group, tracks: [], folded: this.groups.length >= MAX_OPEN_GROUPS, y: 0 };
      this.groups.push(group);
    }
    const track: Track = {
      lane, name: lane.name, about: lane.about, start, end, kind, group,
      depth: Uint8Array.from(lane.depths), work: Int32Array.from(lane.works), marked: new Uint8Array(count),
      rows: rows.map((row) => Int32Array.from(row)), row: lane.kind === "host" ? 15 : 20, folded: false, y: 0, height: 0,
    };
    group.tracks.push(track);
    return track;
  }

  /** Gives each lane its place. */
  place(): void {
    let y = 2;
    this.shown = [];
    for (const group of this.groups) {
      group.y = y;
      if (group.name) y += GROUP;
      for (const track of group.tracks) {
        // A folded group still shows why its devices were idle, and what they were busy with most.
        const busiest = group.tracks.find((one) => one.lane.kind === "device");
        if (group.folded && track.lane.kind !== "idle" && track !== busiest) continue;
        track.y = y;
        track.height = track.folded ? track.row : track.rows.length * track.row;
        y += track.height + GAP;
        this.shown.push(track);
      }
    }
    this.height = y;
  }

  fold(what: Track | Group): void {
    what.folded = !what.folded;
  }

  unfold(track: Track): void {
    track.folded = false;
    track.group.folded = false;
  }

  /** Returns the lane, or the heading of a group, at a height. */
  at(y: number): Track | Group | null {
    const group = this.groups.find((one) => one.name && y >= one.y && y < one.y + GROUP);
    return group ?? this.shown.find((track) => y >= track.y && y < track.y + track.height + GAP) ?? null;
  }

  // ------------------------------------------------------------------ events

  span(event: Event): { start: number; end: number } {
    return { start: event.track.start[event.index]!, end: event.track.end[event.index]! };
  }

  /** Returns how many events of a row start before a moment. */
  firstFrom(track: Track, row: Int32Array, time: number): number {
    let low = 0, high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (track.start[row[middle]!]! < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Returns the event at a moment and a height, or the nearest within reach. */
  eventAt(time: number, y: number, reach: number): Event | null {
    const track = this.shown.find((one) => y >= one.y && y < one.y + one.height);
    const row = track?.rows[Math.floor((y - track.y) / track.row)];
    if (!track || !row) return null;
    const after = this.firstFrom(track, row, time);
    let best: Event | null = null;
    let nearest = reach;
    for (const i of [after - 1, after]) {
      const index = row[i];
      if (index === undefined) continue;
      const away = Math.max(track.start[index]! - time, time - track.end[index]!, 0);
      if (away <= nearest) [best, nearest] = [{ track, index }, away];
    }
    return best;
  }

  /** Returns the event beside, above or below another one. */
  neighbour({ track, index }: Event, to: "before" | "after" | "above" | "below"): Event | null {
    const depth = track.depth[index]!;
    if (to === "before" || to === "after") {
      const row = track.rows[depth]!;
      const next = row[row.indexOf(index) + (to === "after" ? 1 : -1)];
      return next === undefined ? null : { track, index: next };
    }
    const by = to === "below" ? 1 : -1;
    const middle = (track.start[index]! + track.end[index]!) / 2;
    const inside = this.nearest(track, depth + by, middle, to === "below" ? [track.start[index]!, track.end[index]!] : null);
    if (inside) return inside;
    const others = this.shown.filter((one) => one.start.length);
    const other = others[others.indexOf(track) + by];
    return other ? this.nearest(other, by > 0 || other.folded ? 0 : other.rows.length - 1, middle, null) : null;
  }

  private nearest(track: Track, depth: number, time: number, within: [number, number] | null): Event | null {
    const row = track.folded && depth > 0 ? undefined : track.rows[depth];
    if (!row?.length) return null;
    const after = within ? this.firstFrom(track, row, within[0]) : Math.max(this.firstFrom(track, row, time) - 1, 0);
    const index = row[after];
    if (index === undefined || (within && track.start[index]! > within[1])) return null;
    return { track, index };
  }

  /** Returns the first event of the first lane at or after a moment. */
  first(time: number): Event | null {
    const track = this.shown.find((one) => one.start.length);
    return track ? this.nearest(track, 0, time, null) : null;
  }

  /** Returns where the step around a moment begins and ends. */
  stepAround(time: number): [number, number] | null {
    for (const track of this.all) {
      const row = track.lane.kind === "steps" ? track.rows[0] : undefined;
      const at = row?.find((i) => track.start[i]! <= time && time < track.end[i]!);
      if (at !== undefined) return [track.start[at]!, track.end[at]!];
    }
    return null;
  }

  /** Marks the events of the works that pass, and returns them in order of time. */
  mark(test: (work: number) => boolean): Event[] {
    const passes = this.data.kinds.map((_, work) => test(work));
    const found: Event[] = [];
    for (const track of this.all) {
      track.work.forEach((work, index) => {
        track.marked[index] = passes[work] ? 1 : 0;
        if (passes[work]) found.push({ track, index });
      });
    }
    return found.sort((a, b) => a.track.start[a.index]! - b.track.start[b.index]!);
  }

  unmark(): void {
    for (const track of this.all) track.marked.fill(0);
  }

  // ------------------------------------------------------------------ launches

  /** Returns the call that asked for an event of a device, and how long before. */
  launchOf({ track, index }: Event): { event: Event; before: number } | null {
    const before = track.lane.launched[index] ?? -1;
    const event = before < 0 ? undefined : this.launches(track.group).calls.get(track.start[index]! - before);
    return event ? { event, before } : null;
  }

  /** Returns the events of devices that a call asked for. */
  launchedBy({ track, index }: Event): Event[] {
    if (track.lane.kind !== "host") return [];
    const { calls, launched } = this.launches(track.group);
    const at = track.start[index]!;
    const call = calls.get(at);
    return call?.track === track && call.index === index ? (launched.get(at) ?? []) : [];
  }

  /** Returns the events of devices by the time at which they were asked for, and the calls that did it. */
  private launches(group: Group): { launched: Map<number, Event[]>; calls: Map<number, Event> } {
    let found = this.launchesOf.get(group);
    if (found) return found;
    const launched = new Map<number, Event[]>();
    const calls = new Map<number, Event>();
    for (const track of group.tracks) {
      track.lane.launched.forEach((before, index) => {
        if (before < 0) return;
        const at = track.start[index]! - before;
        const same = launched.get(at);
        if (same) same.push({ track, index });
        else launched.set(at, [{ track, index }]);
      });
    }
    for (const track of group.tracks.filter((one) => one.lane.kind === "host")) {
      track.start.forEach((at, index) => {
        const other = calls.get(at);
        // Of an operator and a call that begin together, the inner one launches.
        if (launched.has(at) && !(other && other.track.depth[other.index]! > track.depth[index]!)) calls.set(at, { track, index });
      });
    }
    found = { launched, calls };
    this.launchesOf.set(group, found);
    return found;
  }

  // ------------------------------------------------------------------ works

  name(work: number): string {
    return this.data.texts[this.data.names[work]!] ?? "";
  }

  /** Returns a name without the words that all its neighbours begin with. */
  label(work: number): string {
    return this.name(work).replace(/^aten::/, "").replace(/^nn\.Module: /, "").replace(/^autograd::engine::evaluate_function: /, "");
  }

  kindName(work: number): string {
    return this.data.all_kinds[this.data.kinds[work]!]?.name ?? "";
  }

  place_(work: number): string {
    return this.data.all_places[this.data.places[work]!] ?? "";
  }

  functionOf(work: number): string {
    return this.data.functions[this.data.places[work]!] ?? "";
  }

  /** Returns what is known of a work beside its name and place. */
  facts(work: number): [string, string][] {
    return this.data.facts
      .map(({ label, texts }): [string, string] => [label, this.data.texts[texts[work]!] ?? ""])
      .filter(([, text]) => text);
  }

  /** Returns all that can be searched for, in lower case. */
  textOf(work: number): string {
    const further = this.data.facts.filter((fact) => fact.searched).map((fact) => this.data.texts[fact.texts[work]!] ?? "");
    return (this.texts[work] ??= [this.name(work), this.kindName(work), this.place_(work), this.functionOf(work), ...further]
      .join("\n")
      .toLowerCase());
  }

  /** Returns the place of events that a line of source belongs to: events know the function, by its first line. */
  placeLike(place: string, name = ""): number {
    const { all_places, functions } = this.data;
    const same = all_places.indexOf(place);
    const [file, line] = parted(place);
    const inFile = all_places.map((_, i) => i).filter((i) => parted(all_places[i]!)[0] === file);
    const short = name.split(".").pop() ?? "";
    const isNamed = (text: string) => (short === "<module>" ? text.startsWith(TOP_LEVEL) : parted(text.replace("()", ""), ".")[1] === short);
    const named = inFile.filter((i) => short && isNamed(functions[i]!));
    if (same >= 0 || !inFile.length) return same;
    const before = (named.length ? named : inFile).filter((i) => Number(parted(all_places[i]!)[1]) <= Number(line));
    const nearest = before.sort((a, b) => Number(parted(all_places[b]!)[1]) - Number(parted(all_places[a]!)[1]));
    return nearest[0] ?? named[0] ?? -1;
  }

  /** Returns how many events have the same name, and how long they take. */
  alike(work: number): { count: number; total: number; median: number } {
    const name = this.data.names[work];
    const lengths: number[] = [];
    for (const track of this.all) {
      track.work.forEach((one, i) => {
        if (this.data.names[one] === name) lengths.push(track.end[i]! - track.start[i]!);
      });
    }
    lengths.sort((a, b) => a - b);
    return { count: lengths.length, total: lengths.reduce((sum, one) => sum + one, 0), median: lengths[lengths.length >> 1] ?? 0 };
  }

  timeByKind(): Float64Array {
    const ns = new Float64Array(this.data.all_kinds.length);
    for (const track of this.all) {
      track.rows[0]?.forEach((i) => (ns[track.kind[i]!]! += track.end[i]! - track.start[i]!));
    }
    return ns;
  }

  // ------------------------------------------------------------------ overview

  /** Returns the lanes that tell most in little room. */
  overviewTracks(): Track[] {
    const first = this.groups[0]?.tracks ?? [];
    const of = (kind: Lane["kind"]) => first.filter((track) => track.lane.kind === kind);
    return [of("phases")[0], of("device")[0] ?? of("host")[0], of("idle")[0]].filter((track) => track !== undefined);
  }

  /** Returns for each of so many columns how much of it events fill, and the kind of most of them. */
  columns(track: Track, start: number, end: number, count: number): { kind: number; share: number }[] {
    const each = (end - start) / count;
    const columns = Array.from({ length: count }, () => ({ kind: 0, share: 0, most: 0 }));
    for (const i of track.rows[0] ?? []) {
      const first = Math.max(Math.floor((track.start[i]! - start) / each), 0);
      for (let x = first; x < count; x++) {
        const from = start + x * each;
        if (from >= track.end[i]!) break;
        const part = (Math.min(track.end[i]!, from + each) - Math.max(track.start[i]!, from)) / each;
        const column = columns[x]!;
        column.share = Math.min(column.share + part, 1);
        if (part > column.most) [column.most, column.kind] = [part, track.kind[i]!];
      }
    }
    return columns;
  }
}

/** Returns what is before and after the last separator; a text without one comes second. */
export function parted(text: string, by = ":"): [string, string] {
  const at = text.lastIndexOf(by);
  return at < 0 ? ["", text] : [text.slice(0, at), text.slice(at + by.length)];
}

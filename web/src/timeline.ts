// Events over time in lanes, drawn on a canvas: zoomed, panned, searched, and followed to their source.

import type { TimelineData } from "./data";
import { shows, type Wanted } from "./links";
import { button, Facts } from "./event_facts";
import { openInPerfetto } from "./perfetto";
import { colour, context, kindColour, whenShown } from "./theme";
import { hideTip, showTip } from "./tip";
import { type Event, Tracks, type Track } from "./tracks";
import { duration } from "./units";

const AXIS = 24;
const OVERVIEW = 40;
const MAX_HEIGHT_SHARE = 0.72;
const MIN_SPAN_NS = 200;
/** Narrower events share a column of a pixel with their neighbours. */
const MIN_OWN_WIDTH = 1.5;
const MIN_LABEL_WIDTH = 28;
const LETTERS = "the quick brown fox_jumps.over(the):lazy DOG 0123456789";
/** How strongly unmarked events are drawn where others are marked. */
const FADED = 0.18;
const FONT = "11px system-ui, sans-serif";

export function drawTimeline(stage: HTMLElement, data: TimelineData): void {
  new View(stage, data);
}

type Palette = Record<"paper" | "ink" | "soft" | "rule" | "shade" | "blue" | "bad", string>;

class View {
  private tracks: Tracks;
  private from: number;
  private to: number;
  private selected: Event | null = null;
  private marked: Event[] = [];
  private markedAt = -1;
  private markedWhat = "";
  private range: [number, number] | null = null;
  private width = 0;
  private height = 0;
  private gutter = 0;
  private asked = false;
  private colours: string[] = [];
  /** The width of a letter, on average. */
  private letter = 6;
  private inks: string[] = [];
  private paint: CanvasRenderingContext2D | null = null;
  private overviewPicture: HTMLCanvasElement | null = null;
  private overviewPaint: CanvasRenderingContext2D | null = null;
  private is: Palette = { paper: "", ink: "", soft: "", rule: "", shade: "", blue: "", bad: "" };
  private canvas = document.createElement("canvas");
  private overview = document.createElement("canvas");
  private scroller = div("lanes");
  private tall = div("tall");
  private count = document.createElement("output");
  private search = document.createElement("input");
  private facts: Facts;
  private pointers = new Map<number, { x: number; y: number }>();
  private dragged = false;
  private pressedAt: number | null = null;

  constructor(private stage: HTMLElement, private data: TimelineData) {
    this.tracks = new Tracks(data);
    [this.from, this.to] = this.tracks.extent;
    this.facts = new Facts(this.tracks, {
      select: (event) => this.goTo(event),
      markWork: (work) => this.mark((one) => this.data.names[one] === this.data.names[work], this.tracks.name(work)),
    });
    stage.classList.add("timeline");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `${data.title}. W and S zoom, A and D pan, arrow keys go from event to event, F fits the selection, slash searches.`);
    this.overview.className = "overview";
    this.overview.setAttribute("aria-hidden", "true");
    this.tall.append(this.canvas);
    this.scroller.append(this.tall);
    const hint = div("hint");
    hint.textContent = "W S zoom · A D pan · click, then scroll to zoom · drag to pan · Shift and drag to measure · F or double click to fit · 0 all";
    stage.append(this.tools(), this.legend(), this.overview, this.scroller, hint, this.facts.panel);
    this.listen();
    whenShown(stage, () => this.resize());
    shows("timeline", (wanted) => this.showWanted(wanted), (wanted) => this.worksOf(wanted) !== null);
  }

  // ------------------------------------------------------------------ parts

  private tools(): HTMLElement {
    const tools = div("tools");
    this.search.type = "search";
    this.search.placeholder = "search events, places, shapes";
    this.search.setAttribute("aria-label", "search the timeline");
    this.search.addEventListener("input", () => this.searchFor(this.search.value));
    this.search.addEventListener("keydown", (press) => {
      if (press.key === "Enter") this.step(press.shiftKey ? -1 : 1);
      if (press.key === "Escape") this.unmark();
    });
    this.count.className = "count";
    tools.append(
      this.search,
      button("‹", "previous match", () => this.step(-1)),
      button("›", "next match", () => this.step(1)),
      this.count,
      button("−", "zoom out (S)", () => this.zoom(1.6)),
      button("+", "zoom in (W)", () => this.zoom(1 / 1.6)),
      button("fit", "show everything (0)", () => this.fitAll()),
      button("open in Perfetto", "Opens ui.perfetto.dev in a new tab and hands it these events. This needs the network.", () => {
        this.count.textContent = openInPerfetto(this.tracks)
          ? "Perfetto opens in a new tab; this needs the network"
          : "the browser did not allow a new tab";
      }),
    );
    return tools;
  }

  private legend(): HTMLElement {
    const legend = div("legend");
    const ns = this.tracks.timeByKind();
    const order = this.data.all_kinds.map((_, kind) => kind).filter((kind) => ns[kind]! > 0);
    order.sort((a, b) => ns[b]! - ns[a]!);
    for (const kind of order) {
      const { colour: name, name: text } = this.data.all_kinds[kind]!;
      const chip = button(text, `mark all events of this kind: ${text}`, () => this.mark((work) => this.data.kinds[work] === kind, text));
      chip.className = "chip";
      chip.style.setProperty("--chip", `var(--k-${name}, var(--c8))`);
      legend.append(chip);
    }
    return legend;
  }

  private listen(): void {
    const { canvas, overview } = this;
    this.scroller.addEventListener("scroll", () => this.ask());
    canvas.addEventListener("keydown", (press) => this.onKey(press));
    canvas.addEventListener("wheel", (turn) => this.onWheel(turn), { passive: false });
    canvas.addEventListener("pointerdown", (press) => this.onPress(press));
    canvas.addEventListener("pointermove", (move) => this.onMove(move));
    canvas.addEventListener("pointerleave", hideTip);
    for (const name of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(name, (end) => this.onRelease(end, name === "pointerup"));
    }
    canvas.addEventListener("dblclick", (click) => {
      const event = this.eventAt(click.offsetX, click.offsetY);
      if (event) this.fit(event);
      else if (click.offsetX > this.gutter) this.fitAll();
    });
    canvas.addEventListener("focus", () => this.ask());
    canvas.addEventListener("blur", () => this.ask());
    const jump = (move: PointerEvent) => {
      if (!(move.buttons & 1)) return;
      const [start, end] = this.tracks.extent;
      const at = start + ((end - start) * move.offsetX) / Math.max(overview.clientWidth, 1);
      const half = (this.to - this.from) / 2;
      this.look(at - half, at + half);
    };
    overview.addEventListener("pointerdown", (press) => {
      overview.setPointerCapture(press.pointerId);
      jump(press);
    });
    overview.addEventListener("pointermove", jump);
  }

  // ------------------------------------------------------------------ what is shown

  /** Shows the time from one moment to another, as far as there is anything. */
  private look(from: number, to: number): void {
    const [start, end] = this.tracks.extent;
    const margin = 0.02 * (end - start);
    const span = Math.min(Math.max(to - from, MIN_SPAN_NS), end - start + 2 * margin);
    from = Math.min(Math.max(from, start - margin), end + margin - span);
    [this.from, this.to] = [from, from + span];
    this.ask();
  }

  private zoom(factor: number, at = (this.from + this.to) / 2): void {
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  private fitAll(): void {
    this.look(...this.tracks.extent);
  }

  private fit(event: Event): void {
    const { start, end } = this.tracks.span(event);
    const margin = 0.05 * (end - start);
    this.select(event);
    this.look(start - margin, end + margin);
  }

  private fitSelection(): void {
    if (this.range) this.look(Math.min(...this.range), Math.max(...this.range));
    else if (this.selected) this.fit(this.selected);
    else this.fitAll();
  }

  private select(event: Event | null): void {
    this.selected = event;
    this.facts.show(event);
    this.ask();
  }

  /** Selects an event and brings it into view; an event too small to be seen is zoomed to. */
  private goTo(event: Event): void {
    const { start, end } = this.tracks.span(event);
    const wide = ((end - start) / (this.to - this.from)) * (this.width - this.gutter);
    if (wide < 6 || end < this.from || start > this.to || wide > 2 * this.width) {
      const margin = Math.max(3 * (end - start), MIN_SPAN_NS);
      this.look(start - margin, end + margin);
    }
    this.tracks.unfold(event.track);
    this.place();
    const top = event.track.y + event.track.depth[event.index]! * event.track.row;
    const { scrollTop } = this.scroller;
    if (top < scrollTop + 8 || top > scrollTop + this.height - AXIS - 30) this.scroller.scrollTop = top - this.height / 3;
    this.select(event);
  }

  private searchFor(text: string): void {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return this.unmark();
    this.mark((work) => words.every((word) => this.tracks.textOf(work).includes(word)), "");
  }

  /** Marks all events of the works that pass, and says how many there are. */
  private mark(test: (work: number) => boolean, what: string): void {
    this.marked = this.tracks.mark(test);
    this.markedAt = -1;
    this.markedWhat = what ? `: ${what}` : "";
    const number = this.marked.length.toLocaleString("en-US");
    this.count.textContent = this.marked.length ? `${number} ${this.marked.length === 1 ? "event" : "events"}${this.markedWhat}` : "no event";
    this.ask();
  }

  private unmark(): void {
    this.tracks.unmark();
    this.marked = [];
    this.markedAt = -1;
    this.search.value = "";
    this.count.textContent = "";
    this.ask();
  }

  /** Goes to the next or the previous marked event. */
  private step(by: 1 | -1): void {
    if (!this.marked.length) return;
    const count = this.marked.length;
    this.markedAt = this.markedAt < 0 && by < 0 ? count - 1 : (this.markedAt + by + count) % count;
    this.count.textContent = `${(this.markedAt + 1).toLocaleString("en-US")} of ${count.toLocaleString("en-US")}${this.markedWhat}`;
    this.goTo(this.marked[this.markedAt]!);
  }

  /** Returns which works are wanted, and how to call them; null if there is none. */
  private worksOf(wanted: Wanted): { works: Set<number>; what: string } | null {
    const { kinds, places, all_kinds } = this.data;
    const wantedKinds = new Set((wanted.kinds ?? []).map((name) => all_kinds.findIndex((kind) => kind.name === name)));
    const place = wanted.place ? this.tracks.placeLike(wanted.place, wanted.function) : -1;
    const every = kinds.map((_, work) => work);
    const here = place < 0 ? [] : every.filter((work) => places[work] === place);
    const alike = every.filter((work) => wantedKinds.has(kinds[work]!));
    let both = here.filter((work) => wantedKinds.has(kinds[work]!));
    // Phases and idle gaps of this kind show what the events of the place cost.
    if (both.length) both = [...both, ...alike.filter((work) => places[work]! < 0 && this.tracks.name(work) === this.tracks.kindName(work))];
    const name = this.data.all_places[place] ?? "";
    const kindNames = (wanted.kinds ?? []).join(", ");
    for (const [works, what] of [[both, `${name}, ${kindNames}`], [alike, kindNames], [here, name]] as const) {
      if (works.length) return { works: new Set(works), what };
    }
    return null;
  }

  private showWanted(wanted: Wanted): void {
    this.stage.closest("figure")?.scrollIntoView({ block: "start" });
    if (wanted.text) {
      this.search.value = wanted.text;
      this.searchFor(wanted.text);
    } else {
      const found = this.worksOf(wanted);
      if (!found) return;
      this.search.value = "";
      this.mark((work) => found.works.has(work), found.what);
    }
    if (!this.marked.length) return;
    // The step around the first event shows best what is the matter.
    const placed = this.marked.some(({ track, index }) => this.data.places[track.work[index]!]! >= 0);
    const inStep = this.marked.findIndex(
      (event) => (!placed || this.data.places[event.track.work[event.index]!]! >= 0) && this.tracks.stepAround(this.tracks.span(event).start),
    );
    this.markedAt = Math.max(inStep, 0) - 1;
    const { start, end } = this.tracks.span(this.marked[this.markedAt + 1]!);
    const around = this.tracks.stepAround(start) ?? this.tracks.extent;
    if ((end - start) / (around[1] - around[0]) > 0.004) this.look(...around);
    this.step(1);
    this.canvas.focus({ preventScroll: true });
  }

  // ------------------------------------------------------------------ hands

  private onKey(press: KeyboardEvent): void {
    if (press.ctrlKey || press.metaKey || press.altKey) return;
    const span = this.to - this.from;
    const act: Record<string, () => void> = {
      w: () => this.zoom(1 / 1.25),
      s: () => this.zoom(1.25),
      a: () => this.look(this.from - 0.08 * span, this.to - 0.08 * span),
      d: () => this.look(this.from + 0.08 * span, this.to + 0.08 * span),
      f: () => this.fitSelection(),
      "0": () => this.fitAll(),
      n: () => this.step(1),
      p: () => this.step(-1),
      "/": () => this.search.focus(),
      Escape: () => {
        this.range = null;
        this.unmark();
        this.select(null);
      },
      ArrowLeft: () => this.walk("before"),
      ArrowRight: () => this.walk("after"),
      ArrowUp: () => this.walk("above"),
      ArrowDown: () => this.walk("below"),
      Enter: () => this.facts.followPlace(),
    };
    const key = press.key.length === 1 ? press.key.toLowerCase() : press.key;
    if (!act[key]) return;
    press.preventDefault();
    act[key]!();
  }

  private walk(to: "before" | "after" | "above" | "below"): void {
    const next = this.selected ? this.tracks.neighbour(this.selected, to) : this.tracks.first(this.from);
    if (next) this.goTo(next);
  }

  private onWheel(turn: WheelEvent): void {
    const isSideways = turn.shiftKey || Math.abs(turn.deltaX) > Math.abs(turn.deltaY);
    if (isSideways) {
      const by = ((turn.deltaX || turn.deltaY) / Math.max(this.width, 1)) * (this.to - this.from);
      turn.preventDefault();
      return this.look(this.from + by, this.to + by);
    }
    // A page that is being scrolled must not stop here: only a timeline that was clicked takes the wheel.
    if (!turn.ctrlKey && document.activeElement !== this.canvas) return;
    turn.preventDefault();
    const strength = turn.ctrlKey ? 0.01 : 0.0016;
    this.zoom(Math.exp(Math.max(-120, Math.min(120, turn.deltaY)) * strength), this.timeAt(turn.offsetX));
  }

  private onPress(press: PointerEvent): void {
    this.canvas.setPointerCapture(press.pointerId);
    this.pointers.set(press.pointerId, { x: press.offsetX, y: press.offsetY });
    this.dragged = false;
    this.pressedAt = press.shiftKey && press.offsetX > this.gutter ? this.timeAt(press.offsetX) : null;
    hideTip();
  }

  private onMove(move: PointerEvent): void {
    const last = this.pointers.get(move.pointerId);
    if (!last) return this.hover(move);
    const [dx, dy] = [move.offsetX - last.x, move.offsetY - last.y];
    if (!this.dragged && Math.abs(dx) + Math.abs(dy) < 4) return;
    this.dragged = true;
    const others = [...this.pointers].filter(([id]) => id !== move.pointerId);
    this.pointers.set(move.pointerId, { x: move.offsetX, y: move.offsetY });
    if (others.length) {
      const other = others[0]![1];
      const before = Math.max(Math.abs(last.x - other.x), 10);
      const now = Math.max(Math.abs(move.offsetX - other.x), 10);
      return this.zoom(before / now, this.timeAt(other.x));
    }
    if (this.pressedAt !== null) {
      this.range = [this.pressedAt, this.timeAt(move.offsetX)];
      return this.ask();
    }
    const by = (-dx / (this.width - this.gutter)) * (this.to - this.from);
    this.look(this.from + by, this.to + by);
    if (move.pointerType !== "touch") this.scroller.scrollTop -= dy;
  }

  private onRelease(end: PointerEvent, isClick: boolean): void {
    this.pointers.delete(end.pointerId);
    if (!isClick || this.dragged) return;
    if (end.offsetX < this.gutter) {
      const row = this.tracks.at(end.offsetY - AXIS + this.scroller.scrollTop);
      if (row) this.tracks.fold(row);
      this.place();
      return;
    }
    this.range = null;
    this.select(this.eventAt(end.offsetX, end.offsetY));
  }

  private hover(move: PointerEvent): void {
    const event = this.eventAt(move.offsetX, move.offsetY);
    this.canvas.style.cursor = event || move.offsetX < this.gutter ? "pointer" : "default";
    if (event) return showTip(move.clientX, move.clientY, this.facts.lines(event));
    const row = move.offsetX < this.gutter ? this.tracks.at(move.offsetY - AXIS + this.scroller.scrollTop) : null;
    if (row) showTip(move.clientX, move.clientY, [row.name, "about" in row ? row.about : "", "click to fold or unfold"]);
    else hideTip();
  }

  private timeAt(x: number): number {
    return this.from + ((x - this.gutter) / Math.max(this.width - this.gutter, 1)) * (this.to - this.from);
  }

  private eventAt(x: number, y: number): Event | null {
    if (x < this.gutter || y < AXIS) return null;
    const reach = (2 * (this.to - this.from)) / Math.max(this.width - this.gutter, 1);
    return this.tracks.eventAt(this.timeAt(x), y - AXIS + this.scroller.scrollTop, reach);
  }

  // ------------------------------------------------------------------ drawing

  private resize(): void {
    this.colours = this.data.all_kinds.map((kind, i) => kindColour(kind.colour, i));
    this.inks = this.colours.map(inkOn);
    for (const name of Object.keys(this.is) as (keyof Palette)[]) this.is[name] = colour(name);
    this.width = this.stage.clientWidth;
    this.gutter = this.width < 560 ? 84 : 150;
    this.place();
    this.overviewPicture = this.pictureOfAll();
    this.overviewPaint = context(this.overview, this.width, OVERVIEW);
    this.draw();
  }

  /** Gives the lanes their places, and the canvas its size. */
  private place(): void {
    this.tracks.place();
    const limit = Math.max(260, Math.min(MAX_HEIGHT_SHARE * innerHeight, 760));
    const height = Math.min(this.tracks.height + AXIS + 4, limit);
    this.tall.style.height = `${this.tracks.height + AXIS + 4}px`;
    this.scroller.style.maxHeight = `${limit}px`;
    const width = this.scroller.clientWidth || this.width;
    if (!this.paint || height !== this.height || width !== this.canvas.clientWidth) {
      this.height = height;
      this.width = width;
      this.paint = context(this.canvas, width, height);
      this.paint.font = FONT;
      this.letter = this.paint.measureText(LETTERS).width / LETTERS.length + 0.1;
    }
    this.ask();
  }

  private ask(): void {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  private draw(): void {
    const { paint, width, height, gutter } = this;
    if (!paint || width <= gutter) return;
    const { paper, soft, rule } = this.is;
    const top = this.scroller.scrollTop;
    paint.fillStyle = paper;
    paint.fillRect(0, 0, width, height);
    const every = this.tickDistance();
    this.drawGrid(paint, rule, every);
    paint.save();
    paint.beginPath();
    paint.rect(0, AXIS, width, height - AXIS);
    paint.clip();
    paint.translate(0, AXIS - top);
    paint.textBaseline = "middle";
    paint.font = FONT;
    for (const track of this.tracks.shown) {
      if (track.y > top + height || track.y + track.height < top) continue;
      this.drawTrack(paint, track, top);
    }
    this.drawLaunch(paint);
    this.drawNames(paint, top);
    paint.restore();
    this.drawAxis(paint, soft, rule, every);
    this.drawOverview();
  }

  private drawTrack(paint: CanvasRenderingContext2D, track: Track, top: number): void {
    const { gutter, width, height } = this;
    if (track.lane.kind === "host") {
      paint.fillStyle = this.is.shade;
      paint.globalAlpha = 0.35;
      paint.fillRect(gutter, track.y, width - gutter, track.height);
      paint.globalAlpha = 1;
    }
    const rows = track.folded ? track.rows.slice(0, 1) : track.rows;
    rows.forEach((row, depth) => {
      const y = track.y + depth * track.row;
      if (y + track.row < top || y > top + height) return;
      this.drawRow(paint, track, row, y, track.row - 1);
    });
    const chosen = this.selected;
    if (chosen?.track !== track || (track.folded && track.depth[chosen.index]! > 0)) return;
    const { start, end } = this.tracks.span(chosen);
    const from = Math.max(this.xOf(start), gutter - 2);
    const to = Math.min(this.xOf(end), width + 2);
    if (to < gutter || from > width) return;
    paint.strokeStyle = this.is.ink;
    paint.lineWidth = 2;
    paint.strokeRect(from, track.y + track.depth[chosen.index]! * track.row, Math.max(to - from, 2), track.row - 1);
  }

  /** Draws the events of a row: wide ones as boxes, narrow ones added up by columns of a pixel. */
  private drawRow(paint: CanvasRenderingContext2D, track: Track, row: Int32Array, y: number, height: number): void {
    const { start, end, kind, marked } = track;
    const { from, to, gutter, width, colours } = this;
    const scale = (width - gutter) / (to - from);
    const fades = this.marked.length > 0;
    const shift = gutter - from * scale;
    // Columns keep their place in time while the view moves: they do not flicker.
    const rest = shift - Math.floor(shift);
    let column = Number.NaN, filled = 0, longest = 0, kindOfColumn = 0, isMarked = 0;
    let boxFrom = 0, boxTo = -1, style = -1;
    const flushBox = () => {
      if (boxTo > boxFrom) {
        paint.globalAlpha = ((style & 3) + 1) / 4;
        paint.fillStyle = colours[style >> 2]!;
        const x = Math.max(boxFrom, gutter);
        paint.fillRect(x, y, boxTo - x, height);
      }
      boxTo = -1;
    };
    const flushColumn = () => {
      if (column !== column) return;
      let strength = 0.35 + 0.65 * Math.min(filled, 1);
      if (fades) strength = isMarked ? 1 : strength * FADED;
      const next = (kindOfColumn << 2) | Math.max(Math.ceil(strength * 4) - 1, 0);
      const x = column + rest;
      if (next !== style || boxTo < x - 0.5) {
        flushBox();
        [boxFrom, style] = [x, next];
      }
      boxTo = x + 1;
      column = Number.NaN;
    };
    for (let i = Math.max(this.tracks.firstFrom(track, row, from) - 1, 0); i < row.length; i++) {
      const event = row[i]!;
      const begins = start[event]!;
      if (begins >= to) break;
      if (end[event]! <= from) continue;
      const x = begins * scale + shift;
      const wide = (end[event]! - begins) * scale;
      if (wide >= MIN_OWN_WIDTH) {
        flushColumn();
        flushBox();
        const left = Math.max(x, gutter);
        const right = Math.min(x + wide, width);
        if (right <= left) continue;
        const faded = fades && !marked[event];
        paint.globalAlpha = faded ? FADED : 1;
        paint.fillStyle = colours[kind[event]!]!;
        paint.fillRect(left, y, Math.max(right - left - (wide > 3 ? 0.5 : 0), 0.5), height);
        if (!faded && right - left > MIN_LABEL_WIDTH) this.label(paint, track, event, left, right - left, y, height);
        continue;
      }
      const at = Math.floor(x - rest);
      if (at !== column) {
        flushColumn();
        [column, filled, longest, isMarked] = [at, 0, -1, 0];
      }
      filled += wide;
      isMarked |= marked[event]!;
      const weight = fades && marked[event] ? wide + 10 : wide;
      if (weight > longest) [longest, kindOfColumn] = [weight, kind[event]!];
    }
    flushColumn();
    flushBox();
    paint.globalAlpha = 1;
  }

  private label(paint: CanvasRenderingContext2D, track: Track, event: number, x: number, wide: number, y: number, height: number): void {
    const letters = Math.floor((wide - 6) / this.letter);
    const text = track.lane.kind === "steps" ? `step ${this.tracks.name(track.work[event]!)}` : this.tracks.label(track.work[event]!);
    if (letters < 3) return;
    paint.fillStyle = this.inks[track.kind[event]!]!;
    paint.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, x + 3, y + height / 2 + 0.5, wide - 5);
  }

  /** Draws a line between the selected event and the call that launched it, or what it launched. */
  private drawLaunch(paint: CanvasRenderingContext2D): void {
    const { selected, tracks } = this;
    if (!selected) return;
    const launch = tracks.launchOf(selected);
    const pairs: [Event, Event][] = launch ? [[launch.event, selected]] : tracks.launchedBy(selected).slice(0, 8).map((event) => [selected, event]);
    paint.strokeStyle = this.is.ink;
    paint.lineWidth = 1.5;
    for (const [call, event] of pairs) {
      const [a, b] = [this.pointOf(call, true), this.pointOf(event, false)];
      if (!a || !b) continue;
      const middle = (a.y + b.y) / 2;
      paint.beginPath();
      paint.moveTo(a.x, a.y);
      paint.bezierCurveTo(a.x, middle, b.x, middle, b.x, b.y);
      paint.stroke();
      paint.beginPath();
      paint.arc(b.x, b.y, 3, 0, 7);
      paint.fillStyle = this.is.ink;
      paint.fill();
    }
  }

  /** Returns where an event begins on the canvas; null if its lane is not shown. */
  private pointOf({ track, index }: Event, isCall: boolean): { x: number; y: number } | null {
    if (!this.tracks.shown.includes(track)) return null;
    const depth = track.folded ? 0 : track.depth[index]!;
    return { x: this.xOf(track.start[index]!), y: track.y + depth * track.row + (isCall ? 1 : track.row - 2) };
  }

  private drawNames(paint: CanvasRenderingContext2D, top: number): void {
    const { gutter, width, is } = this;
    paint.fillStyle = is.paper;
    paint.fillRect(0, top, gutter - 1, this.height);
    for (const group of this.tracks.groups) {
      if (!group.name) continue;
      paint.fillStyle = is.shade;
      paint.fillRect(0, group.y, width, 18);
      paint.fillStyle = is.ink;
      paint.font = `600 ${FONT}`;
      paint.fillText(`${group.folded ? "▸" : "▾"} ${group.name}`, 4, group.y + 9.5);
    }
    paint.font = FONT;
    for (const track of this.tracks.shown) {
      paint.fillStyle = is.rule;
      paint.fillRect(0, track.y + track.height + 2, width, 1);
      // The name of a lane higher than the view stays in view.
      const y = Math.min(Math.max(track.y, top), track.y + track.height - track.row) + track.row / 2;
      const mark = track.rows.length > 1 ? (track.folded ? "▸ " : "▾ ") : "";
      const letters = Math.floor((gutter - 8) / this.letter);
      const text = mark + track.name;
      paint.fillStyle = is.ink;
      paint.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, 4, y);
    }
  }

  private tickDistance(): number {
    const rough = ((this.to - this.from) / Math.max(this.width - this.gutter, 1)) * 110;
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  }

  private drawGrid(paint: CanvasRenderingContext2D, rule: string, every: number): void {
    paint.fillStyle = rule;
    paint.globalAlpha = 0.6;
    for (let at = Math.ceil(this.from / every) * every; at <= this.to; at += every) {
      const x = Math.round(this.xOf(at));
      if (x >= this.gutter) paint.fillRect(x, AXIS - 5, 1, this.height);
    }
    paint.globalAlpha = 1;
  }

  private drawAxis(paint: CanvasRenderingContext2D, soft: string, rule: string, every: number): void {
    const { gutter, width, height, from, to } = this;
    paint.font = FONT;
    paint.textBaseline = "middle";
    paint.fillStyle = soft;
    for (let at = Math.ceil(from / every) * every; at <= to; at += every) {
      const x = Math.round(this.xOf(at)) + 0.5;
      if (x < gutter) continue;
      const text = axisText(at, every);
      if (x + this.letter * text.length + 12 < width) paint.fillText(text, x + 3, AXIS / 2);
    }
    paint.fillStyle = document.activeElement === this.canvas ? this.is.blue : rule;
    paint.fillRect(0, AXIS - 1, width, 1);
    paint.fillStyle = soft;
    paint.fillText(duration(to - from), 4, AXIS / 2);
    if (!this.range) return;
    const [a, b] = this.range.map((at) => this.xOf(at)).sort((one, other) => one - other) as [number, number];
    paint.fillStyle = this.is.blue;
    paint.globalAlpha = 0.16;
    paint.fillRect(a, AXIS, b - a, height);
    paint.globalAlpha = 1;
    paint.fillRect(a, AXIS - 4, b - a, 4);
    paint.font = `600 ${FONT}`;
    paint.fillText(duration(Math.abs(this.range[1] - this.range[0])), (a + b) / 2, AXIS + 10);
  }

  /** Returns a picture of everything: what the host did, and when devices were busy. */
  private pictureOfAll(): HTMLCanvasElement {
    const picture = document.createElement("canvas");
    const wide = this.width;
    const paint = context(picture, wide, OVERVIEW);
    const [start, end] = this.tracks.extent;
    const strips = this.tracks.overviewTracks();
    const height = (OVERVIEW - 4) / Math.max(strips.length, 1);
    strips.forEach((track, strip) => {
      const filled = this.tracks.columns(track, start, end, Math.max(Math.floor(wide), 1));
      filled.forEach(({ kind, share }, x) => {
        if (!share) return;
        paint.fillStyle = this.colours[kind]!;
        const tall = Math.max(share * (height - 2), 1);
        paint.fillRect(x, 2 + (strip + 1) * height - tall, 1, tall);
      });
    });
    return picture;
  }

  private drawOverview(): void {
    const paint = this.overviewPaint;
    if (!paint) return;
    paint.clearRect(0, 0, this.width, OVERVIEW);
    const [start, end] = this.tracks.extent;
    const at = (time: number) => ((time - start) / (end - start)) * this.width;
    const [a, b] = [Math.max(at(this.from), 0), Math.min(at(this.to), this.width)];
    if (this.overviewPicture) paint.drawImage(this.overviewPicture, 0, 0, this.width, OVERVIEW);
    paint.fillStyle = this.is.shade;
    paint.globalAlpha = 0.75;
    paint.fillRect(0, 0, a, OVERVIEW);
    paint.fillRect(b, 0, this.width - b, OVERVIEW);
    paint.globalAlpha = 1;
    if (this.marked.length) {
      paint.fillStyle = this.is.bad;
      let last = -1;
      for (const event of this.marked) {
        const x = Math.round(at(this.tracks.span(event).start));
        if (x !== last) paint.fillRect(x, 0, 1, 4);
        last = x;
      }
    }
    paint.strokeStyle = this.is.ink;
    paint.strokeRect(a + 0.5, 0.5, Math.max(b - a - 1, 1), OVERVIEW - 1);
  }

  private xOf(time: number): number {
    return this.gutter + ((time - this.from) / (this.to - this.from)) * (this.width - this.gutter);
  }
}

function div(name: string): HTMLDivElement {
  const made = document.createElement("div");
  made.className = name;
  return made;
}

/** Returns a moment as text with as many digits as tell neighbouring ticks apart. */
function axisText(at: number, every: number): string {
  const [size, unit] = every >= 1e9 ? [1e9, "s"] : every >= 1e6 ? [1e6, "ms"] : every >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${(Math.round(at / size) + 0).toLocaleString("en-US")} ${unit}`;
}

/** Returns black or white, whichever can be read on a colour. */
function inkOn(fill: string): string {
  const hex = fill.replace("#", "");
  const [r, g, b] = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255) as [number, number, number];
  return 0.299 * r + 0.587 * g + 0.114 * b > 0.5 ? "#000" : "#fff";
}

// Hands the events of a timeline to ui.perfetto.dev. Nothing is fetched or sent before a person asks for it.

import type { Tracks } from "./tracks";

const PERFETTO = "https://ui.perfetto.dev";
const ASK_EVERY_MS = 200;
const GIVE_UP_MS = 60_000;

/** Opens Perfetto in a tab, and posts the events to it when it answers; returns whether a tab was opened. */
export function openInPerfetto(tracks: Tracks): boolean {
  const tab = window.open(PERFETTO);
  if (!tab) return false;
  const ask = setInterval(() => tab.postMessage("PING", PERFETTO), ASK_EVERY_MS);
  const stop = () => {
    clearInterval(ask);
    removeEventListener("message", answered);
  };
  const answered = (message: MessageEvent) => {
    if (message.source !== tab || message.origin !== PERFETTO || message.data !== "PONG") return;
    stop();
    const buffer = new TextEncoder().encode(JSON.stringify({ traceEvents: chromeEvents(tracks) })).buffer;
    tab.postMessage({ perfetto: { buffer, title: document.title, fileName: "ridgeline.json" } }, PERFETTO);
  };
  addEventListener("message", answered);
  setTimeout(stop, GIVE_UP_MS);
  return true;
}

/** Returns the events in the form of chrome://tracing, which Perfetto reads: times in microseconds. */
export function chromeEvents(tracks: Tracks): object[] {
  const events: object[] = [];
  tracks.groups.forEach((group, pid) => {
    events.push({ ph: "M", name: "process_name", pid, args: { name: group.name || document.title } });
    group.tracks.forEach((track, tid) => {
      events.push({ ph: "M", name: "thread_name", pid, tid, args: { name: track.name } });
      events.push({ ph: "M", name: "thread_sort_index", pid, tid, args: { sort_index: tid } });
      track.work.forEach((work, i) => {
        const place = tracks.place_(work);
        const args = Object.fromEntries([...(place ? [["place", place]] : []), ...tracks.facts(work)]);
        events.push({
          ph: "X", pid, tid, name: tracks.name(work), cat: tracks.kindName(work),
          ts: track.start[i]! / 1000, dur: (track.end[i]! - track.start[i]!) / 1000, args,
        });
      });
    });
  });
  return events;
}

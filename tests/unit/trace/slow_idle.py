"""Where a device's time went, worked out piece by piece from the JSON: slow, obvious, the judge.

Takes events as plain dicts, times as whole nanoseconds. Every gap is cut at every moment at which
anything begins or ends, and each piece is judged by looking at all events. Shares the lists of
names with the product, and nothing else.
"""

from bisect import bisect
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from typing import Any

from ridgeline.trace import host_states as names

Event = dict[str, Any]
Span = tuple[int, int]
CHATTER, LATENCY, UNLINKED, PAUSE = 200_000, 50_000, 10_000, 10_000
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "runtime")
OPS = ("cpu_op", "operator")
PYTHON = ("python_function", "user_annotation")
NAMED = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")


def in_ns(events: list[Any]) -> list[Event]:
    """Complete events with their category in small letters and times in nanoseconds."""
    kept = []
    for e in events:
        if isinstance(e, dict) and e.get("ph") == "X" and e.get("cat"):
            ts, end = (
                int((Decimal(str(v)) * 1000).to_integral_value(ROUND_HALF_UP))
                for v in (e["ts"], e["dur"])
            )
            args = e.get("args") or {}
            cat = e["cat"].lower()
            if cat in OPS and e["name"].startswith(NAMED):  # how traces before 2022 list spans
                cat = "user_annotation"
            kept.append({**e, "cat": cat, "ts": ts, "dur": end, "args": args,
                         "tid": str(e["tid"])})  # fmt: skip
    return kept


def end_of(e: Event) -> int:
    return int(e["ts"] + e["dur"])


def union(spans: list[Span], pause: int = -1) -> list[Span]:
    """Merged; with a pause, also over pauses up to that length."""
    found: list[Span] = []
    for a, b in sorted(s for s in spans if s[1] > s[0]):
        if found and a <= found[-1][1] + max(pause, 0):
            found[-1] = (found[-1][0], max(found[-1][1], b))
        else:
            found.append((a, b))
    return found


def holds(spans: list[Span], t: int) -> bool:
    return any(a <= t < b for a, b in spans)


class SlowIdle:
    """One device (the first), over its activity."""

    def __init__(self, events: list[Event], main: str | None = None) -> None:
        work = [e for e in events if e["cat"] in DEVICE]
        first = min((e["args"].get("device", -1) for e in work), default=-1)
        self.device = [e for e in work if e["args"].get("device", -1) == first]
        self.host = [e for e in events if e["cat"] in (*CALLS, *OPS, *PYTHON)]
        self.calls = {
            e["args"].get("correlation", 0): e
            for e in sorted(self.host, key=lambda e: e["ts"])
            if e["cat"] in CALLS and e["args"].get("correlation", 0) > 0
        }
        self.start = min(e["ts"] for e in self.device)
        self.end = max(end_of(e) for e in self.device)
        self.main = main if main is not None else self._main()
        lanes = {c["tid"] for c in map(self.call, work) if c} | {self.main}
        self.claims = {lane: self._claims(lane) for lane in lanes}
        self.active = {
            lane: union([s for _, spans in claims for s in spans], CHATTER)
            for lane, claims in self.claims.items()
        }
        every = [s for claims in self.claims.values() for _, spans in claims for s in spans]
        every += [s for spans in self.active.values() for s in spans]
        self.moments = sorted({t for s in every for t in s})

    def call(self, e: Event) -> Event | None:
        return self.calls.get(e["args"].get("correlation", 0))

    def gaps(self) -> list[Span]:
        busy = union([(e["ts"], end_of(e)) for e in self.device])
        return [(a, b) for (_, a), (b, _) in pairwise(busy)]

    def causes(self) -> Counter[str]:
        """Nanoseconds of idle time by cause."""
        total: Counter[str] = Counter()
        for gap in self.gaps():
            total.update(self.causes_of(gap))
        return total

    def causes_of(self, gap: Span) -> Counter[str]:
        a, b = gap
        found: Counter[str] = Counter()
        following = min(
            (e for e in self.device if e["ts"] >= b), key=lambda e: (e["ts"], -e["dur"])
        )
        call = self.call(following)
        if not any(self.active.values()):
            return Counter({"unknown": b - a})
        if call is None and b - a <= UNLINKED:
            return Counter({"between kernels": b - a})
        lane = call["tid"] if call else self.main
        asked = min(max(call["ts"], a), b) if call else b
        for low, high in pairwise(self._cuts(a, asked)):
            found[self.state(lane, low)] += high - low
        latency = min(b - asked, LATENCY) if asked > a else 0
        found["launch-bound"] += latency
        found["between kernels"] += b - asked - latency
        moved = min(found["launch-bound"], self.waited(a))
        found["launch-bound"] -= moved
        found["synchronisation"] += moved
        return +found

    def _cuts(self, a: int, b: int) -> list[int]:
        inside = self.moments[bisect(self.moments, a) : bisect(self.moments, b - 1)]
        return sorted({a, b, *inside})

    def waited(self, a: int) -> int:
        """How long a wait, or several close together, had the host when the device ran dry."""
        spans = union([(w["ts"], end_of(w)) for w in self.waits()], PAUSE)
        return max((end - start for start, end in spans if start <= a <= end), default=0)

    def waits(self) -> list[Event]:
        back = [self.call(e) for e in self.device if "DtoH" in e["name"]]
        waiting = [c for c in back if c and names.is_copy_call(c["name"])]
        return waiting + [c for c in self.calls.values() if names.is_sync_call(c["name"])]

    def state(self, lane: str, t: int) -> str:
        for one in (lane, *(x for x in self.claims if x != lane)):
            for cause, spans in self.claims[one]:
                if holds(spans, t):
                    return cause
            if holds(self.active[one], t):
                return "launch-bound"
        return "other host"

    def _claims(self, lane: str) -> list[tuple[str, list[Span]]]:
        """What this thread was in, the more telling first."""
        mine = [e for e in self.host if e["tid"] == lane]

        def spans(test: Any, *cats: str) -> list[Span]:
            return [(e["ts"], end_of(e)) for e in mine if e["cat"] in cats and test(e["name"])]

        copies = [(e, self.call(e)) for e in self.device if e["cat"] in ("gpu_memcpy", "memcpy")]
        there = [c for e, c in copies if c and "HtoD" in e["name"] and c["tid"] == lane]
        back = [c for e, c in copies if c and "DtoH" in e["name"] and c["tid"] == lane]
        return [
            ("garbage collection", spans(names.is_collection, *PYTHON)),
            ("compile", spans(names.is_compile, *PYTHON, *OPS, *CALLS)),
            ("input", spans(names.is_input, *PYTHON)),
            ("collective wait", spans(names.is_collective_wait, *PYTHON, *OPS)),
            ("allocator", spans(names.is_allocator_call, *CALLS)),
            ("transfer", [(self._copy_start(c, mine), end_of(c)) for c in there]),
            (
                "synchronisation",
                spans(names.is_sync_call, *CALLS)
                + [(c["ts"], end_of(c)) for c in back]
                + spans(names.BLOCKING_OPS.__contains__, *OPS),
            ),
            ("launch-bound", spans(lambda name: True, *OPS, *CALLS)),
        ]

    def _copy_start(self, call: Event, mine: list[Event]) -> int:
        """Up from the call through copying operators, as long as they follow one another."""
        around = [e for e in mine if e["cat"] in OPS and e["ts"] <= call["ts"] < end_of(e)]
        start = call["ts"]
        for e in sorted(around, key=lambda e: (-e["ts"], e["dur"])):
            if e["name"] not in names.COPY_OPS:
                break
            start = e["ts"]
        return int(start)

    def _main(self) -> str:
        marks = [e for e in self.host if e["name"].startswith("ProfilerStep#")]
        frames = [e for e in self.host if e["cat"] == "python_function"]
        own = [e for e in self.host if e["tid"] == str(e["pid"]) and e["cat"] in OPS]
        by_cat = [[e for e in self.host if e["cat"] in cats] for cats in
                  (OPS, ("user_annotation",), CALLS)]  # fmt: skip
        for events in (marks, frames, own, *by_cat):
            lanes = Counter(e["tid"] for e in events)
            if lanes:
                most = max(lanes.values())
                tied = [t for t in lanes if lanes[t] == most]
                own_ids = {str(e["pid"]) for e in self.host}
                return next((t for t in tied if t in own_ids), tied[0])
        return ""

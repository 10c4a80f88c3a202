"""Why the device was idle, worked out microsecond by microsecond: slow, obvious, and the judge.

Works on the events of `traces_made` (whole microseconds) as plain dicts. Shares the lists of names
with the product, and nothing else.
"""

from collections import Counter
from itertools import pairwise
from typing import Any

from ridgeline.trace import host_names as names

Event = dict[str, Any]
CHATTER, LATENCY, UNLINKED, PAUSE = 200, 50, 10, 10


class SlowIdle:
    def __init__(self, events: list[Event]) -> None:
        self.device = [e for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        self.host = [e for e in events if e not in self.device]
        self.calls = {e["args"]["correlation"]: e for e in self.host if e["cat"] == "cuda_runtime"}
        self.start = min(e["ts"] for e in self.device)
        self.end = max(e["ts"] + e["dur"] for e in self.device)
        launching = [self.call(e) for e in self.device]
        self.lanes = sorted({c["tid"] for c in launching if c})
        self.main = self._main()
        self.states = {lane: self._states(lane) for lane in {*self.lanes, self.main}}

    def busy(self, t: int) -> bool:
        return any(e["ts"] <= t < e["ts"] + e["dur"] for e in self.device)

    def call(self, e: Event) -> Event | None:
        return self.calls.get(e["args"]["correlation"])

    def gaps(self) -> list[tuple[int, int]]:
        found, open_ = [], None
        for t in range(self.start, self.end + 1):
            idle = t < self.end and not self.busy(t)
            if idle and open_ is None:
                open_ = t
            elif not idle and open_ is not None:
                found.append((open_, t))
                open_ = None
        return found

    def causes(self) -> Counter[str]:
        """Microseconds of idle time by cause."""
        total: Counter[str] = Counter()
        for a, b in self.gaps():
            following = min(
                (e for e in self.device if e["ts"] >= b), key=lambda e: (e["ts"], -e["dur"])
            )
            call = self.call(following)
            if not any(self.states.values()):
                total["unknown"] += b - a
                continue
            if call is None and b - a <= UNLINKED:
                total["between kernels"] += b - a
                continue
            waited = self.waited(a)
            lane = call["tid"] if call else self.main
            asked = min(max(call["ts"], a), b) if call else b
            for t in range(a, b):
                cause = self.state(lane, t) if t < asked else self.on_its_way(a, asked, t)
                if waited and cause == "launch-bound":
                    cause, waited = "synchronisation", waited - 1
                total[cause] += 1
        return total

    def waited(self, a: int) -> int:
        """How long a wait, or several close together, had the host when the device ran dry."""
        busy = sorted({t for w in self.waits() for t in range(w["ts"], w["ts"] + w["dur"])})
        for t, after in pairwise(list(busy)):
            if after - t <= PAUSE + 1:
                busy += range(t + 1, after)
        held = set(busy)
        start = a - 1 if a - 1 in held else a
        if start not in held:
            return 0
        low = high = start
        while low - 1 in held:
            low -= 1
        while high + 1 in held:
            high += 1
        return high + 1 - low

    def on_its_way(self, a: int, asked: int, t: int) -> str:
        return "launch-bound" if asked > a and t - asked < LATENCY else "between kernels"

    def waits(self) -> list[Event]:
        back = [self.call(e) for e in self.device if "DtoH" in e["name"]]
        waiting = [c for c in back if c and names.is_copy_call(c["name"])]
        return waiting + [c for c in self.calls.values() if names.is_sync_call(c["name"])]

    def state(self, lane: int, t: int) -> str:
        for one in (lane, *sorted(x for x in self.states if x != lane)):
            if t in self.states[one]:
                return self.states[one][t]
        return "other host"

    def _states(self, lane: int) -> dict[int, str]:
        """What a thread was in at each microsecond it was in anything."""
        found: dict[int, str] = {}
        mine = [e for e in self.host if e["tid"] == lane]
        for cause, spans in reversed(self._claims(lane, mine)):
            for a, b in spans:
                found.update((t, cause) for t in range(a, b))
        covered = sorted(found)
        for t, after in pairwise(covered):
            if 1 < after - t <= CHATTER + 1:
                found.update((hole, "launch-bound") for hole in range(t + 1, after))
        return found

    def _claims(self, lane: int, mine: list[Event]) -> list[tuple[str, list[tuple[int, int]]]]:
        def spans(test: Any, *cats: str) -> list[tuple[int, int]]:
            return [
                (e["ts"], e["ts"] + e["dur"]) for e in mine if e["cat"] in cats and test(e["name"])
            ]

        python = ("python_function", "user_annotation")
        copies = [(e, self.call(e)) for e in self.device if e["cat"] == "gpu_memcpy"]
        there = [c for e, c in copies if c and "HtoD" in e["name"] and c["tid"] == lane]
        back = [c for e, c in copies if c and "DtoH" in e["name"] and c["tid"] == lane]
        return [
            ("garbage collection", spans(names.is_collection, *python)),
            ("compile", spans(names.is_compile, *python, "cpu_op", "cuda_runtime")),
            ("input", spans(names.is_input, *python)),
            ("collective wait", spans(names.is_collective_wait, *python, "cpu_op")),
            ("allocator", spans(names.is_allocator_call, "cuda_runtime")),
            ("transfer", [(self._copy_start(c, mine), c["ts"] + c["dur"]) for c in there]),
            (
                "synchronisation",
                spans(names.is_sync_call, "cuda_runtime")
                + [(c["ts"], c["ts"] + c["dur"]) for c in back]
                + spans(names.BLOCKING_OPS.__contains__, "cpu_op"),
            ),
            ("launch-bound", spans(lambda name: True, "cpu_op", "cuda_runtime")),
        ]

    def _copy_start(self, call: Event, mine: list[Event]) -> int:
        """Up from the call through copying operators, as long as they follow one another."""
        around = [
            e for e in mine
            if e["cat"] == "cpu_op" and e["ts"] <= call["ts"] < e["ts"] + e["dur"]
        ]  # fmt: skip
        start = call["ts"]
        for e in sorted(around, key=lambda e: (-e["ts"], e["dur"])):
            if e["name"] not in names.COPY_OPS:
                break
            start = e["ts"]
        return int(start)

    def _main(self) -> int:
        first = [e for e in self.host if e["tid"] == e["pid"] and e["cat"] == "cpu_op"]
        by_cat = [[e for e in self.host if e["cat"] == cat] for cat in
                  ("cpu_op", "user_annotation", "cuda_runtime")]  # fmt: skip
        for events in (first, *by_cat):
            lanes = Counter(e["tid"] for e in events)
            if lanes:
                most = max(lanes.values())
                return int(min(t for t in lanes if lanes[t] == most))
        return -1

"""What the rules of synchronisation share: which sort a wait is of, what it costs, where it stands.

A wait's cost is the device's idle time after it (`trace/analyses/sync_costs.py`, and `what_if.py`
for untraced steps), and the device work that only it asks for. All waits together are charged at
most what the untraced step idles, without its input.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.what_if import saved_shares
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.sites import SyncSite
from ridgeline.records.trace import Place
from ridgeline.source.waiting import Line, calls

Sort = Literal[
    "print", "dynamic", "branch", "item", "explicit", "small copy", "large copy", "other"
]

LEAST = 0.01
"""Of the step: a wait that costs less is not worth a line of a report."""
LARGE_BYTES = 128 * 1024
"""A copy this large takes 10 µs at 13 GB/s: as long as being waited for. Below it, the wait is what
costs; from it on, the bytes."""
_PRINTING = re.compile(r"_tensor_str\.py:|_tensor\.py:(__repr__|__format__)$|^print$")
_DYNAMIC = frozenset({
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::argwhere",
    "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount", "aten::one_hot",
    "aten::nonzero_numpy", "aten::unique_dim_consecutive", "aten::combinations",
})  # fmt: skip
"""Operators whose result's size depends on values on the device."""
_BRANCH = frozenset({"aten::is_nonzero", "aten::equal", "aten::allclose"})
_NUMBER = frozenset({"aten::item", "aten::_local_scalar_dense"})
_COPIES = frozenset({"aten::to", "aten::_to_copy", "aten::copy_"})
_WAITED_FOR = re.compile(r"(Device|Event|Context|Ctx)Synchronize")
_FUNCTION = re.compile(r"\.py:|^nn\.Module")
_DIRECT = re.compile(
    r"torch[/\\](cuda[/\\]|functional|_tensor|_jit_internal|nn[/\\]functional|utils[/\\]_contextlib)"
)
"""What a user calls to get a wait, or a result: not a library that waits on its own account."""
_MACHINERY = re.compile(
    r":(_call_impl|_wrapped_call_impl|wrapper|_no_grad_wrapper|profile_hook_step|inner|_use_grad"
    r"|decorate_context|_fn|forward|helper)$"
)


class Waiting(Struct, frozen=True, kw_only=True):
    """All waits of one sort from one function, asked for in the same way."""

    place: Place | None
    sites: tuple[SyncSite, ...]

    @property
    def times(self) -> float:
        return sum(site.times for site in self.sites)

    @property
    def waits(self) -> float:
        return sum(site.waits for site in self.sites)

    @property
    def bytes(self) -> float:
        return sum(site.bytes for site in self.sites)

    @property
    def host_ns(self) -> float:
        return sum(site.host_ns for site in self.sites)

    @property
    def idle_ns(self) -> float:
        return sum(site.idle_ns for site in self.sites)

    @property
    def device_ns(self) -> float:
        return sum(site.device_ns for site in self.sites)

    @property
    def call(self) -> str:
        """cudaStreamSynchronize, cudaEventSynchronize …"""
        return self.sites[0].call

    @property
    def via(self) -> tuple[str, ...]:
        return self.sites[0].via

    @property
    def ops(self) -> tuple[str, ...]:
        return self.sites[0].ops

    @property
    def method(self) -> str:
        """The built-in method or function asked, where the trace names it: item, cpu, nonzero."""
        return self.via[-1] if self.via and not _FUNCTION.search(self.via[-1]) else ""

    @property
    def library(self) -> str:
        """The library's function in which it waits; "" where the user's own line does."""
        return library_of(self.via).split(":")[-1]


def sort_of(site: SyncSite) -> Sort:
    """By what stands between the user's function and the wait."""
    if any(_PRINTING.search(name) for name in site.via):
        return "print"
    ops = set(site.ops)
    if ops & _DYNAMIC:
        return "dynamic"
    if ops & _BRANCH:
        return "branch"
    if ops & _NUMBER:
        return "item"
    if ops & _COPIES:
        if site.direction != "to host":
            return "other"
        return "large copy" if site.bytes >= LARGE_BYTES * max(site.times, 1e-9) else "small copy"
    if not ops and not site.direction:
        asked = any(
            name.split(":")[-1] in ("synchronize", "_cuda_synchronize") for name in site.via
        )
        return "explicit" if asked or (not site.via and _WAITED_FOR.search(site.call)) else "other"
    return "other"


def waiting(case: Case, sort: Sort) -> Iterator[Waiting]:
    """Those worth a word, the costliest first."""
    groups: dict[tuple[object, ...], list[SyncSite]] = {}
    for site in case.sites.waits:
        if sort_of(site) == sort:
            method = site.via[-1] if site.via else ""
            groups.setdefault((site.place, method, library_of(site.via)), []).append(site)
    found = [Waiting(place=group[0].place, sites=tuple(group)) for group in groups.values()]
    for one in sorted(found, key=lambda w: -(w.idle_ns + w.device_ns)):
        if cost(case, one) >= LEAST:
            yield one


def cost(case: Case, wait: Waiting) -> float:
    """Share of the step that would be gone without it, at most."""
    return lost(case, wait.sites) + case.device_share(wait.device_ns)


def lost(case: Case, sites: Sequence[SyncSite]) -> float:
    """Share of the step the device idles for these waits: the larger of what they are charged with
    in the traced steps and of what going through the steps without them saves. The trace alone says
    too little where tracing makes the host so slow that it has nothing to wait for."""
    room = max(1 - (case.busy or 0.0) - case.share_of("input"), 0.0)
    charged = _part(case, sum(site.idle_ns for site in sites))
    every = _part(case, sum(site.idle_ns for site in case.sites.waits))
    fits = min(room / every, 1.0) if every else 0.0
    again = _replayed(case, sites)
    if again is not None and not _timed(case):
        return min(again, room)  # within 1 % of the traced steps' own length on a V100
    return max(fits * charged, min(again or 0.0, room))


def _part(case: Case, ns: float) -> float:
    return ns / 1e6 / case.step_ms if case.step_ms else 0.0


def _timed(case: Case) -> bool:
    return case.kind == "run" and bool(case.times.mean_ms)


def _replayed(case: Case, sites: Sequence[SyncSite]) -> float | None:
    if case.sites.replay is None:
        return None
    shares = saved_shares(case.sites.replay, case.step_ms * 1e6, not _timed(case))
    rows = [i for i, site in enumerate(case.sites.waits) if any(site is one for one in sites)]
    return sum(shares[row] for row in rows if row < len(shares))


def evidence(case: Case, wait: Waiting, share: float) -> list[Evidence]:
    step = case.step_ms * 1e6
    said = [
        Evidence(what="waits", text=f"{per_step(wait.waits)} a step", value=wait.waits),
        Evidence(
            what="time lost to them",
            text=f"{units.seconds(share * step / 1e9)}, {units.percent(share)} of the step",
            value=share,
            source="derived",
        ),
        Evidence(
            what="host held",
            text=f"{units.seconds(wait.host_ns / 1e9)} a traced step",
            value=wait.host_ns / 1e6,
        ),
    ]
    if wait.library:
        said.append(Evidence(what="inside", text=f"{wait.library}() of a library"))
    return said


def through_library(case: Case, place: Place | None, via: Sequence[str]) -> tuple[Line, ...]:
    """Where the function calls the library that waits: by the names seen on the way there."""
    for name in via:
        found = calls(case.sources, place, {name.split(":")[-1]})
        if found:
            return found
    return ()


def also(lines: Sequence[Line]) -> list[Evidence]:
    """Further lines of the same function that do the same."""
    numbers = sorted({line.number for line in lines[1:]} - {lines[0].number}) if lines else []
    if not numbers:
        return []
    text = ", ".join(str(number) for number in numbers[:6])
    return [Evidence(what="also on lines", text=text, source="read")]


def per_step(count: float) -> str:
    return units.significant(count) if count % 1 else f"{count:.0f}"


def often(count: float) -> str:
    """once a step, 190 times a step."""
    if abs(count - 1) < 0.05:
        return "once a step"
    return f"{per_step(round(count) if count > 10 else round(count, 1))} times a step"


def library_of(via: Sequence[str]) -> str:
    """The outermost function that is not torch's own machinery around one."""
    named = [name for name in via if ".py:" in name and not _DIRECT.search(name)]
    told = [name for name in named if not _MACHINERY.search(name)]
    return (told or named or [""])[0]


FEW = 4
"""Waits a step: with fewer the host runs ahead between them, so that no launches are hidden that
were not. One wait of 23 µs does not make a step 1.58 × as fast."""


def wait_finding(
    rule: Rule,
    case: Case,
    wait: Waiting,
    *,
    claim: str,
    lines: Sequence[Line],
    change: str,
    of_library: str = "",
) -> Finding:
    """`lines`: those of the user's function that may ask for it, the likeliest first. Where a
    library waits, the line that calls it is named instead, and the change is `of_library`: what
    would end the library's wait, where that is known."""
    doubt = ""
    if wait.library and not lines:
        lines = through_library(case, wait.place, wait.via)
        change = of_library
        doubt = f"the wait is the library's own, in {library_of(wait.via)}" + (
            "" if of_library else ": only another option or function of it ends it"
        )
    share = cost(case, wait)
    confidence: Confidence = "high" if lines else "medium" if wait.place is not None else "low"
    if not lines:
        doubt = "the source could not be read or does not show the call: the line is the function's"
        if wait.place is None:
            doubt = "the trace has no Python stacks: the line is not known"
    return make_finding(
        rule,
        claim=claim + (f", inside {wait.library}()" if wait.library else ""),
        share=share,
        evidence=[*evidence(case, wait, share), *also(lines)],
        place=wait.place,
        line=lines[0].number if lines else None,
        change=change,
        confidence=confidence,
        doubt=doubt,
        bound=bound_ahead(case, share) if wait.waits >= FEW else None,
    )

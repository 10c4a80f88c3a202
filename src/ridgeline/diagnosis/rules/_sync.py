"""Waits of the host for the device: which kind a wait is, what it costs, where it stands.

A wait costs the device's idle time after it (`trace/analyses/sync_costs.py`, and `what_if.py` for
untraced steps), and the device work that only it asks for. All waits together are charged at most
what the untraced step idles, without its input.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._evidence import measured, read, seconds_of_step
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.diagnosis.what_if import saved_shares
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.sites import SyncSite
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.source.waiting import Line, calls

Kind = Literal[
    "print", "dynamic", "branch", "item", "explicit", "small copy", "large copy", "other"
]

MIN_SHARE = 0.01
"""Share of the step from which a wait or a copy is reported."""
LARGE_BYTES = 128 * 1024
"""A copy this large takes 10 µs at 13 GB/s, as long as being waited for. Below it the wait is what
costs, above it the bytes."""
MIN_WAITS_FOR_HIDDEN_LAUNCHES = 4
"""Waits a step. With fewer, the host runs ahead between them, and no launch is hidden that was not
hidden before: one wait of 23 µs does not make a step 1.58 × as fast."""
MAX_QUOTED_LENGTH = 50
"""A longer expression is not quoted in a claim."""
_PRINTING = re.compile(r"_tensor_str\.py:|_tensor\.py:(__repr__|__format__)$|^print$")
_DYNAMIC = frozenset({
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::argwhere",
    "aten::unique_consecutive", "aten::repeat_interleave", "aten::bincount", "aten::one_hot",
    "aten::nonzero_numpy", "aten::unique_dim_consecutive", "aten::combinations",
})  # fmt: skip
"""Operators whose result has a size that depends on values on the device."""
_BRANCH = frozenset({"aten::is_nonzero", "aten::equal", "aten::allclose"})
_NUMBER = frozenset({"aten::item", "aten::_local_scalar_dense"})
_COPIES = frozenset({"aten::to", "aten::_to_copy", "aten::copy_"})
_WAITED_FOR = re.compile(r"(Device|Event|Context|Ctx)Synchronize")
_FUNCTION = re.compile(r"\.py:|^nn\.Module")
_DIRECT = re.compile(
    r"torch[/\\](cuda[/\\]|functional|_tensor|_jit_internal|nn[/\\]functional|utils[/\\]_contextlib)"
)
"""Functions that a user calls to get a result or a wait. All others are libraries that wait for
reasons of their own."""
_MACHINERY = re.compile(
    r":(_call_impl|_wrapped_call_impl|wrapper|_no_grad_wrapper|profile_hook_step|inner|_use_grad"
    r"|decorate_context|_fn|forward|helper)$"
)


class Waiting(Struct, frozen=True, kw_only=True):
    """All waits of one kind from one function, asked for in the same way."""

    place: Place | None
    sites: tuple[SyncSite, ...]

    @property
    def waits(self) -> float:
        return sum(site.waits for site in self.sites)

    @property
    def times(self) -> float:
        """How often the function asks; printing one tensor may wait forty times."""
        return sum(site.times for site in self.sites)

    @property
    def bytes(self) -> float:
        return sum(site.bytes for site in self.sites)

    @property
    def idle_ns(self) -> float:
        return sum(site.idle_ns for site in self.sites)

    @property
    def device_ns(self) -> float:
        return sum(site.device_ns for site in self.sites)

    @property
    def via(self) -> tuple[str, ...]:
        return self.sites[0].via

    @property
    def ops(self) -> tuple[str, ...]:
        return self.sites[0].ops

    @property
    def method(self) -> str:
        """The built-in method or function that the trace names: item, cpu, nonzero; or ""."""
        return self.via[-1] if self.via and not _FUNCTION.search(self.via[-1]) else ""

    @property
    def library(self) -> str:
        """The library's function that waits; "" if the user's own line does."""
        return library_of(self.via).split(":")[-1]


def kind_of(site: SyncSite) -> Kind:
    """Return a wait's kind, by what stands between the user's function and the wait."""
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


def waiting(case: Case, kind: Kind) -> Iterator[Waiting]:
    """Yield the waits of a kind that are worth a report, the costliest first."""
    groups: dict[tuple[object, ...], list[SyncSite]] = {}
    for site in case.sites.waits:
        if kind_of(site) == kind:
            method = site.via[-1] if site.via else ""
            groups.setdefault((site.place, method, library_of(site.via)), []).append(site)
    found = [Waiting(place=group[0].place, sites=tuple(group)) for group in groups.values()]
    for wait in sorted(found, key=lambda w: -(w.idle_ns + w.device_ns)):
        if cost(case, wait) >= MIN_SHARE:
            yield wait


def cost(case: Case, wait: Waiting) -> float:
    """Return the share of the step that would be gone without the wait, at most."""
    return lost(case, wait.sites) + case.device_share(wait.device_ns)


def lost(case: Case, sites: Sequence[SyncSite]) -> float:
    """Return the share of the step that the device idles for these waits: the larger of what they
    are charged with in the traced steps and of what replaying the steps without them saves. The
    trace alone says too little if tracing makes the host so slow that it has nothing to wait for.
    """
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
    rows = [i for i, site in enumerate(case.sites.waits) if any(site is mine for mine in sites)]
    return sum(shares[row] for row in rows if row < len(shares))


def _evidence(case: Case, wait: Waiting, share: float, lines: Sequence[Line]) -> list[Evidence]:
    held_ns = sum(site.host_ns for site in wait.sites)
    facts = [
        measured("waits", f"{per_step(wait.waits)} a step", wait.waits),
        seconds_of_step(case, "time lost to them", share),
        measured("host held", f"{units.seconds(held_ns / 1e9)} a traced step", held_ns / 1e6),
    ]
    if wait.library:
        facts.append(measured("inside", f"{wait.library}() of a library"))
    further = sorted({line.number for line in lines} - {line.number for line in lines[:1]})
    if further:
        facts.append(read("also on lines", ", ".join(map(str, further[:6]))))
    return facts


def through_library(case: Case, place: Place | None, via: Sequence[str]) -> tuple[Line, ...]:
    """Return the lines of the function that call the library that waits, by the names seen on the
    way to the wait."""
    for name in via:
        found = calls(case.sources, place, {name.split(":")[-1]})
        if found:
            return found
    return ()


def per_step(count: float) -> str:
    return units.significant(count) if count % 1 else f"{count:.0f}"


def often(count: float) -> str:
    """Return "once a step", "190 times a step"."""
    if abs(count - 1) < 0.05:
        return "once a step"
    return f"{per_step(round(count) if count > 10 else round(count, 1))} times a step"


def library_of(via: Sequence[str]) -> str:
    """Return the outermost function on the way to a wait that is not torch's own machinery."""
    named = [name for name in via if ".py:" in name and not _DIRECT.search(name)]
    own = [name for name in named if not _MACHINERY.search(name)]
    return (own or named or [""])[0]


def quoted(lines: Sequence[Line], otherwise: str) -> str:
    """Return the expression of the first line as a quotation, if it is short."""
    short = bool(lines) and len(lines[0].expression) < MAX_QUOTED_LENGTH
    return f"`{lines[0].expression}`" if short else otherwise


def wait_findings(
    rule: Rule,
    case: Case,
    kind: Kind,
    find_lines: Callable[[Case, Waiting], tuple[Line, ...]],
    claim: Callable[[Waiting, Sequence[Line]], str],
    change: Callable[[Case, SourceFile | None, Waiting, Sequence[Line]], str],
    library_change: Callable[[Waiting], str] = lambda wait: "",
) -> Iterator[Finding]:
    """Yield a finding for each costly wait of a kind.

    find_lines: returns the lines of the user's function that may ask for it, the likeliest first.
    library_change: returns what ends the wait of a library, if that is known. The finding then
        names the line that calls the library.
    """
    for wait in waiting(case, kind):
        lines = find_lines(case, wait)
        said = claim(wait, lines) + (f", inside {wait.library}()" if wait.library else "")
        code, doubt = change(case, source_of(case, wait.place), wait, lines), ""
        if wait.library and not lines:
            lines, code = through_library(case, wait.place, wait.via), library_change(wait)
            doubt = f"the wait is the library's own, in {library_of(wait.via)}"
            doubt += "" if code else ": only another option or function of it ends it"
        if wait.place is None and not lines:
            doubt = "the trace has no Python stacks: the line is not known"
        elif not lines:
            doubt = "the source could not be read or does not show the call: the line is the "
            doubt += "function's"
        share = cost(case, wait)
        confidence: Confidence = "high" if lines else "medium" if wait.place is not None else "low"
        many = wait.waits >= MIN_WAITS_FOR_HIDDEN_LAUNCHES
        yield make_finding(
            rule,
            claim=said,
            share=share,
            evidence=_evidence(case, wait, share, lines),
            place=wait.place,
            line=lines[0].number if lines else None,
            change=code,
            confidence=confidence,
            doubt=doubt,
            bound=bound_ahead(case, share) if many else None,
        )

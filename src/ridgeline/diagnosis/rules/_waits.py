"""Waits of the host for the device, and copies to it: their kind, their cost and their line.

A wait costs the device's idle time after it (`trace/analyses/sync_costs.py`, and a replay for
untraced steps), and the device work that only it asks for. All waits together are charged at most
what the untraced step idles, without its input.

The replay says how long the step would be without some of the waits. A launch starts on the device
when the host has come to it and the work before it on its stream is done. A wait lets the host go
on when the device is done. Tracing slows the host, so its time is scaled until the replayed steps
take as long as the untraced ones did.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import MAX_SHARE, Rule, make_finding, measured, read, seconds_of_step
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.run import LoaderSeen
from ridgeline.records.sites import CopySite, Replay, SyncSite
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.source.transfers import copy_on_line, unchanged
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


MAIN_SHARE = 0.5
"""Share of the step from which copies are most of it."""
KERNEL_GAP_NS = 100_000
"""From the end of a copy that was waited for to the next kernel: 30 to 80 µs on an H200."""
LINK_BYTES_S = 64e9
"""PCIe 5.0 with 16 lanes, in one direction. Pinned copies are faster only over NVLink-C2C."""
_CHIP_TO_CHIP = re.compile(r"GH200|GB200|GB300|MI300A")
CHIP_TO_CHIP_BYTES_S = 450e9
COPIES = frozenset({"to", "cuda", "copy_", "tensor", "as_tensor"})
_INDEXED = re.compile(r"index", re.IGNORECASE)
_NO_COPY = re.compile(
    r"\.to\((dtype=)?(torch\.)?(float|bfloat|half|int|long|double|bool|uint)\w*\)"
)


class Sent(Struct, frozen=True, kw_only=True):
    """Copies to the device that one line asks for in a step."""

    place: Place | None
    line: Line | None
    sites: tuple[CopySite, ...]
    held_ns: float = 0.0
    """Time in which the host waited for them."""
    lost: float = 0.0
    """Share of the step in which the device idles because the host waits."""

    @property
    def bytes(self) -> float:
        return sum(site.bytes for site in self.sites)

    @property
    def copies(self) -> float:
        return sum(site.copies for site in self.sites)

    @property
    def device_ns(self) -> float:
        return sum(site.device_ns for site in self.sites)

    @property
    def exposed_ns(self) -> float:
        """Time of the copying in which no kernel ran."""
        return sum(site.exposed_ns for site in self.sites)

    @property
    def small(self) -> bool:
        """Whether the copying takes no time to speak of, and only the wait for it counts."""
        return self.bytes < LARGE_BYTES * self.copies

    @property
    def of_index(self) -> bool:
        """Whether a tensor on the device is indexed with one on the host."""
        return all(_INDEXED.search(site.op) for site in self.sites)

    @property
    def pageable(self) -> bool:
        most = max(self.sites, key=lambda site: site.device_ns)
        return most.pageable is True


def sent(case: Case) -> tuple[Sent, ...]:
    """Return the copies to the device, the costliest first."""
    groups: dict[tuple[object, ...], list[CopySite]] = defaultdict(list)
    for site in case.sites.copies:
        if site.direction == "to device":
            groups[site.place, site.op, site.via].append(site)
    found = [part for sites in groups.values() for part in _by_line(case, sites)]
    return tuple(sorted(found, key=lambda copies: -(copies.exposed_ns + copies.held_ns)))


def repeated(case: Case, one: Sent) -> bool:
    """Return whether the source shows that the same data are copied each time."""
    source = source_of(case, one.place)
    if source is None or one.line is None:
        return False
    call = copy_on_line(source, one.line.number, COPIES)
    return call is not None and unchanged(source, call)


def holds_up(case: Case, one: Sent) -> float:
    """Return the share of the step that would be gone without the copies: time in which the device
    idles but for the copy or because the host was held. Both can be gained only up to the time that
    the host was held."""
    copying = sum(_waited_for(case, one, site) for site in one.sites)
    whole = case.device_share(copying) + one.lost
    most = max(one.held_ns, copying + KERNEL_GAP_NS * one.copies)
    return min(whole, case.device_share(most))


def _waited_for(case: Case, one: Sent, site: CopySite) -> float:
    """Return the time of the copying that something waits for. That no kernel runs beside it may
    also be because the host has not launched one."""
    in_turn = not site.beside and (one.held_ns > 0 or (case.busy or 0.0) >= SATURATED)
    return site.exposed_ns if in_turn else min(site.exposed_ns, site.path_ns)


def beside(case: Case) -> float:
    """Return the share of the step in which the device computes, which can hide copies."""
    copying = sum(site.exposed_ns for site in case.sites.copies)
    return max((case.busy or 0.0) - case.device_share(copying), 0.0)


def pinned_share(case: Case, size: float) -> float:
    """Return the least share of the step that copying so many bytes from pinned memory takes."""
    name = case.device.name if case.device is not None else ""
    rate = CHIP_TO_CHIP_BYTES_S if _CHIP_TO_CHIP.search(name) else LINK_BYTES_S
    return case.device_share(size / rate * 1e9)


def pinned_bound(case: Case, size: float, share: float) -> float | None:
    """Return the bound of pinning. If copies are most of the step, all waiting of the step goes
    with them, and no step is shorter than its pinned copies or its kernels: 8.3 × was gained where
    the wait for copies alone said 6.9 ×."""
    if share < MAIN_SHARE:
        return bound_ahead(case, share)
    return 1 / max(pinned_share(case, size), beside(case), 1 - MAX_SHARE)


def evidence(case: Case, one: Sent, share: float) -> Iterator[Evidence]:
    seconds = one.device_ns / 1e9
    rate = f" at {units.bandwidth(one.bytes / seconds)}" if seconds else ""
    number = per_step(one.copies)
    copies = f"{number} {'copy' if number == '1' else 'copies'}"
    text = f"{units.bytes_(one.bytes)} a step in {copies}{rate}"
    yield measured("copied to the device", text, one.bytes)
    exposed = f"{units.seconds(one.exposed_ns / 1e9)} a step"
    yield measured("no kernel ran meanwhile", exposed, one.exposed_ns / 1e6)
    yield seconds_of_step(case, "held up", share)


def named(one: Sent) -> str:
    """Return what asks for the copies, for a claim."""
    if one.line is not None and len(one.line.expression) <= MAX_QUOTED_LENGTH:
        return f"`{one.line.expression}`"
    return "A copy to the GPU"


def only_the_loader(one: Sent, loader: LoaderSeen | None) -> bool:
    """Return whether the line does not wait, and only the loader's `pin_memory` is missing."""
    does_not_wait = one.line is not None and "non_blocking=True" in one.line.text
    return does_not_wait and loader is not None and not loader.pin_memory


def unblocked(expression: str) -> str:
    """Return a copy with `non_blocking=True`."""
    if "non_blocking" in expression:
        return re.sub(r"non_blocking\s*=\s*\w+", "non_blocking=True", expression)
    if not expression.endswith(")"):
        return expression
    empty = expression.endswith("()")
    return f"{expression[:-1]}{'' if empty else ', '}non_blocking=True)"


def _by_line(case: Case, sites: list[CopySite]) -> Iterator[Sent]:
    """Yield the copies of one function by its lines, in their order if there is one line for each
    copy."""
    first = sites[0]
    waits = [wait for wait in case.sites.waits if _same(wait, first)]
    lines = _lines(case, first)
    ordered = sorted(sites, key=lambda site: site.offset_ns)
    numbers = sorted({line.number for line in lines})
    if len(numbers) > 1 and len(lines) == len(ordered):
        by_number = sorted(lines, key=lambda line: line.number)
        parts: dict[int, list[CopySite]] = defaultdict(list)
        for line, site in zip(by_number, ordered, strict=True):
            parts[line.number].append(site)
        first_of = {line.number: line for line in reversed(by_number)}
        for number, members in parts.items():
            yield _sent(case, first_of[number], members, sites, waits)
        return
    yield _sent(case, lines[0] if lines else None, sites, sites, waits)


def _sent(
    case: Case,
    line: Line | None,
    sites: list[CopySite],
    every: list[CopySite],
    waits: list[SyncSite],
) -> Sent:
    total = sum(site.host_ns for site in every)
    part = sum(site.host_ns for site in sites) / total if total else len(sites) / len(every)
    return Sent(
        place=sites[0].place,
        line=line,
        sites=tuple(sites),
        held_ns=part * sum(wait.host_ns for wait in waits),
        lost=part * lost(case, waits),
    )


def _same(wait: SyncSite, site: CopySite) -> bool:
    op = wait.ops[0] if wait.ops else ""
    same = (wait.place, op, wait.via) == (site.place, site.op, site.via)
    return same and wait.direction != "to host"


def _lines(case: Case, site: CopySite) -> tuple[Line, ...]:
    """Return the calls that copy to the device, those in the deepest loop, the likeliest first."""
    if library_of(site.via):
        return through_library(case, site.place, site.via)[:1]
    if _INDEXED.search(site.op):
        return ()  # brackets ask for it, and no line that copies
    method = site.via[-1] if site.via else ""
    names = {method} if method in COPIES else COPIES - {"copy_"}
    found = [
        line
        for line in calls(case.sources, site.place, names)
        if "cpu" not in line.expression and not _NO_COPY.search(line.expression)
    ]
    if not method:  # torch.tensor(x) makes one on the host, unless it is told where
        found = [at for at in found if "tensor(" not in at.text or "device" in at.expression]
    return tuple(line for line in found if line.loops == found[0].loops)


LAUNCH_LATENCY_NS = 5_000
"""The time from the launching call to the device: 3 to 8 µs on GPUs from V100 to H200."""
RETURN_LATENCY_NS = 3_000
"""The time from the end of the device's work until the host goes on."""
MIN_SCALE, MAX_SCALE = 0.1, 1.5
"""Limits of the untraced host's time, as a share of the traced one's: 0.3 to 0.9 was seen."""
HALVINGS = 9
"""1.4 / 2 ** 9 is 0.3 % of the host's time."""

MAX_SITES = 12
"""How many sites, the costliest, are left out one by one."""


def length_ns(replay: Replay, scale: float, without: Collection[int] = ()) -> float:
    """Return the length of a step with the host's time scaled, without the waits of some sites."""
    gone = frozenset(without)
    ends = [0.0] * (max(replay.stream, default=0) + 1)
    host, last = 0.0, 0.0
    for before, asking, site, dur, stream in zip(
        replay.before_ns, replay.asking_ns, replay.site, replay.dur_ns, replay.stream, strict=True
    ):
        host += before * scale
        if site in gone and not replay.stays[site]:
            continue
        host += asking * scale
        if dur >= 0:
            end = max(host + LAUNCH_LATENCY_NS, ends[stream]) + dur
            ends[stream] = end
            last = max(last, end)
        elif site not in gone:
            host = max(host, last) + RETURN_LATENCY_NS
    return max(host, last) / replay.steps


def scale_for(replay: Replay, step_ns: float) -> float:
    """Return the factor by which host time must be scaled so that the replayed step lasts
    `step_ns`."""
    low, high = MIN_SCALE, MAX_SCALE
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if length_ns(replay, middle) < step_ns:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@lru_cache(maxsize=4)
def saved_shares(replay: Replay, step_ns: float, traced: bool) -> tuple[float, ...]:
    """Return for each site the share of the step that would be gone without its waits. If leaving
    out one moves the wait to the next, what all together save is divided by what each saves alone,
    or evenly. With `traced` the step is the traced one, and the host's time is not scaled."""
    count = len(replay.stays)
    scale = 1.0 if traced else scale_for(replay, step_ns)
    whole = length_ns(replay, scale)
    of = max(whole, step_ns)  # what going through again does not explain, nothing here takes away
    if not whole or not count:
        return (0.0,) * count
    seen = sorted({site for site in replay.site if 0 <= site < MAX_SITES})
    alone = {site: max(whole - length_ns(replay, scale, {site}), 0.0) for site in seen}
    together = max(whole - length_ns(replay, scale, seen), 0.0)
    rest = max(together - sum(alone.values()), 0.0)
    total = sum(alone.values())
    found = []
    for site in range(count):
        own = alone.get(site, 0.0)
        part = own / total if total else 1 / len(seen)
        found.append((own + rest * part) / of if site in alone else 0.0)
    return tuple(found)

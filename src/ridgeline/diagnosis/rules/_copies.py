"""Copies to the device by the line that asks for them: what they hold up, and whether they are the
same each step."""

import re
from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import MAX_SHARE
from ridgeline.diagnosis.rules._evidence import measured, seconds_of_step
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.rules._sync import (
    LARGE_BYTES,
    MAX_QUOTED_LENGTH,
    library_of,
    lost,
    per_step,
    through_library,
)
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.records.finding import Evidence
from ridgeline.records.run import LoaderSeen
from ridgeline.records.sites import CopySite, SyncSite
from ridgeline.records.trace import Place
from ridgeline.source.transfers import copy_on_line, unchanged
from ridgeline.source.waiting import Line, calls

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

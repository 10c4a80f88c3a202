"""What else must be known before a comparison is believed: weak checks, guards, drift, order,
outliers, the host."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from ridgeline.records.comparison import Arm, Candidate, Comparison, Guard
from ridgeline.report.comparison_numbers import interval, is_ratio, share, times
from ridgeline.report.comparison_rows import reason
from ridgeline.units import plural

Weight = Literal["bad", "warning", "note"]


class Note(Struct, frozen=True):
    label: str
    """One word: what it is about."""
    weight: Weight
    text: str


def notes(c: Comparison) -> list[Note]:
    """The bad first, then warnings, then what is merely good to know."""
    found = [
        *_broken(c),
        *_control(c),
        *_whys(c),
        *_results(c),
        *_guards(c),
        *_order(c),
        *_drift(c),
    ]
    found += [*_arms(c), *_host(c), *(Note("note", "note", text) for text in c.notes)]
    order: list[Weight] = ["bad", "warning", "note"]
    return sorted(dict.fromkeys(found), key=lambda n: order.index(n.weight))


def _broken(c: Comparison) -> Iterator[Note]:
    for skipped in c.broken:
        weight: Weight = "bad" if skipped.status == "BROKEN" else "warning"
        yield Note(skipped.status.lower(), weight, f"{skipped.name}: {reason(skipped)}")


def _control(c: Comparison) -> Iterator[Note]:
    if c.control.differs:
        figure = interval(c.control.estimate, " ×")
        yield Note("control", "bad", f"identical code was told apart: A/A {figure}")


def _whys(c: Comparison) -> Iterator[Note]:
    """Why a candidate has no clear verdict. With one candidate it stands under the headline."""
    if len(c.candidates) > 1:
        for k in c.candidates:
            if k.why and k.verdict in ("INVALID", "UNDECIDED", "SAME"):
                weight: Weight = "bad" if k.verdict == "INVALID" else "note"
                yield Note("verdict", weight, f"{k.arm.name} {k.verdict}: {k.why}")


def _results(c: Comparison) -> Iterator[Note]:
    said: list[tuple[Candidate, Weight, str]] = []
    for k in c.candidates:
        found = k.results
        if found.status == "different":
            if not found.detail or found.detail not in k.why:  # why INVALID has said it already
                said.append((k, "bad", found.detail or "different"))
            continue
        if found.strength != "strong":
            kind = "weak check" if found.strength == "weak" else "not checked"
            why = "; ".join(found.reasons) or found.detail
            said.append((k, "warning", f"{kind}: {why}" if why else kind))
        # With several candidates the table says enough of the strong ones.
        elif found.detail and len(c.candidates) == 1:
            said.append((k, "note", found.detail))
    yield from _grouped(c, "results", said)


def _guards(c: Comparison) -> Iterator[Note]:
    said: list[tuple[Candidate, Weight, str]] = []
    for k in c.candidates:
        for guard in k.guards:
            if guard.outcome in ("failed", "warned") and told(guard) not in k.why:
                weight: Weight = "bad" if guard.outcome == "failed" else "warning"
                said.append((k, weight, told(guard)))
        missed = [g.name for g in k.guards if g.outcome == "not looked for"]
        passed = sum(g.outcome == "passed" for g in k.guards)
        if missed or passed:
            rest = f"; not looked for: {', '.join(missed)}" if missed else ""
            said.append((k, "note", f"{passed} passed{rest}"))
    yield from _grouped(c, "guards", said)


def _grouped(
    c: Comparison, label: str, said: list[tuple[Candidate, Weight, str]]
) -> Iterator[Note]:
    """What holds for every candidate without a name, what holds for some once with theirs."""
    names: dict[tuple[Weight, str], list[str]] = {}
    for k, weight, text in said:
        names.setdefault((weight, text), []).append(k.arm.name)
    for (weight, text), who in names.items():
        prefix = "" if len(who) == len(c.candidates) else f"{', '.join(who)}: "
        yield Note(label, weight, f"{prefix}{text}")


def told(guard: Guard) -> str:
    return f"{guard.name}{f': {guard.detail}' if guard.detail else ''}"


def _order(c: Comparison) -> Iterator[Note]:
    if c.order.significant:
        where = f" ({c.order.where})" if c.order.where else ""
        text = f"the place in a round changed times by up to {share(c.order.share)}{where}"
        yield Note("order", "warning", text)


def _drift(c: Comparison) -> Iterator[Note]:
    if c.drift.significant:
        way = "slower" if c.drift.share > 0 else "faster"
        yield Note(
            "drift", "warning",
            f"the baseline got {share(abs(c.drift.share))} {way} from the first round to the last; "
            "ratios are taken inside rounds, absolute times are not",
        )  # fmt: skip


def _arms(c: Comparison) -> Iterator[Note]:
    named = [("baseline", c.baseline), *((k.arm.name, k.arm) for k in c.candidates)]
    for name, arm in named:
        if not arm.steady:
            calls = f" after {plural(arm.warmup_calls, 'call')}" if arm.warmup_calls else ""
            yield Note("warm-up", "warning", f"{name} had not become steady{calls}")
        if arm.recompiles:
            count = plural(arm.recompiles, "compilation")
            yield Note("compile", "warning", f"{name}: {count} while the rounds ran")
    discarded = max(arm.discarded for _, arm in named)
    if discarded:  # a round is left out whole, so each arm lost as many
        text = f"{plural(discarded, 'round')} left out, taken while the device was throttled"
        yield Note("discarded", "warning", text)
    yield from _processor_time(c)
    far = "; ".join(_outliers(name, arm) for name, arm in named if arm.outliers.total)
    if far:
        yield Note("outliers", "note", f"counted and kept: {far}")


def _outliers(name: str, arm: Arm) -> str:
    found = arm.outliers
    severe, of = found.severe_low + found.severe_high, len(arm.samples_ns) or arm.summary.count
    if severe == found.total:
        return f"{name} {severe} severe of {of}"
    return f"{name} {found.total} of {of}" + (f", {severe} severe" if severe else "")


def _processor_time(c: Comparison) -> Iterator[Note]:
    """Return notes about processor time, where it decides or contradicts wall time."""
    said: list[tuple[Candidate, Weight, str]] = []
    for k in c.candidates:
        if k.decided_by == "processor_time":
            text = f"wall time alone gives {interval(k.estimate, ' ×')}; {k.why}"
            said.append((k, "note", text))
            continue
        ratio = k.cpu_ratio
        if ratio is None or not is_ratio(ratio):
            continue
        if k.verdict == "FASTER" and ratio < 1 / (1 + c.threshold):
            text = f"faster by the clock, on more processor time ({times(ratio)})"
            said.append((k, "note", text))
        if k.verdict == "SLOWER" and ratio > 1 + c.threshold:
            text = f"slower by the clock, on less processor time ({times(ratio)})"
            said.append((k, "note", text))
    yield from _grouped(c, "cpu time", said)


def _host(c: Comparison) -> Iterator[Note]:
    yield from (Note("host", "note", text) for text in c.surroundings.sentences)

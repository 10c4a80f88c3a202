"""Pairs the values of the candidate with those of the baseline."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ridgeline.equality.calls.evidence import Evidence, Fresh
from ridgeline.equality.calls.held_state import Changed
from ridgeline.equality.calls.judge import Error, Pair, error, numbers, same_outputs
from ridgeline.equality.calls.outputs import Leaf, Outputs, sampled_alike

_TRAINED = ("parameter", "buffer")


class Paired(Struct):
    pairs: list[Pair] = []
    differences: list[str] = []
    """Values that lack a counterpart they should have."""
    notes: list[str] = []
    """Values that could not be paired and need not be."""
    partial: bool = False
    """Whether the reference shares some of the baseline's rounding."""
    repeated: set[int] = set()
    """Indices of pairs that have the same numbers as an earlier call's."""


def pair_up(baseline: Evidence, candidate: Evidence) -> Paired:
    """Pair the outputs of each call, of a call on other inputs, and the state after the calls."""
    paired = Paired(partial=baseline.reference.partial)
    nudged = _nudges(baseline)
    for turn, (ours, theirs) in enumerate(zip(baseline.outputs, candidate.outputs, strict=False)):
        if turn and ours is baseline.outputs[0] and theirs is candidate.outputs[0]:
            continue  # bit-identical to the first call on both sides
        references = baseline.reference.outputs
        reference = references[turn] if turn < len(references) else None
        again = turn > 0 and same_outputs(ours, baseline.outputs[turn - 1])
        prefix = f"call {turn + 1}, " if turn else ""
        first = len(paired.pairs)
        _outputs(paired, prefix, "output", ours, theirs, reference, nudged)
        if again:
            paired.repeated |= set(range(first, len(paired.pairs)))
        if paired.differences:
            return paired  # the other calls would repeat it
    _other_inputs(paired, baseline, candidate)
    _state(paired, baseline, candidate)
    return paired


def _outputs(
    paired: Paired,
    prefix: str,
    role: str,
    ours: Outputs,
    theirs: Outputs,
    reference: Outputs | None = None,
    nudges: dict[str, Error] | None = None,
) -> None:
    if not _has_values(ours.leaves):
        if _has_values(theirs.leaves):
            paired.notes.append("the candidate returns something where the baseline returns None")
        return
    exact, nudged = _by_path(reference), nudges or {}
    for mine, other in _match(paired, prefix, ours.leaves, theirs.leaves):
        leaf, other = sampled_alike(mine, other)
        paired.pairs.append(
            Pair(
                path=prefix + (leaf.path or "the output"),
                role=role,
                baseline=leaf,
                candidate=other,
                reference=_same_elements(exact.get(leaf.path), leaf),
                partial=paired.partial,
                nudged=nudged.get(leaf.path, Error()),
            )
        )


def _same_elements(reference: Leaf | None, leaf: Leaf) -> Leaf | None:
    return None if reference is None else sampled_alike(reference, leaf)[0]


def _nudges(baseline: Evidence) -> dict[str, Error]:
    """Return, by path, how far rounding of the inputs moves the outputs. It shows only if the
    baseline is repeatable."""
    if baseline.nudged.outputs is None or baseline.spread != 0.0:
        return {}
    first = _by_path(baseline.outputs[0])
    errors = {}
    for path, leaf in _by_path(baseline.nudged.outputs).items():
        if path in first:
            errors[path] = _nudge(leaf, first[path], None)
    return errors


def _nudge(moved: Leaf | None, leaf: Leaf, before: Leaf | None) -> Error:
    if moved is None or moved.values is None or leaf.values is None or moved.shape != leaf.shape:
        return Error()
    scale = None
    if before is not None and before.values is not None:
        scale = numbers(leaf.values) - numbers(before.values)
    return error(numbers(moved.values), numbers(leaf.values), scale)


def _match(
    paired: Paired, prefix: str, ours: Sequence[Leaf], theirs: Sequence[Leaf]
) -> list[tuple[Leaf, Leaf]]:
    """Match leaves by path, or in order if no paths agree (a model's output and a tuple)."""
    mine, other = {leaf.path: leaf for leaf in ours}, {leaf.path: leaf for leaf in theirs}
    if mine.keys() == other.keys():
        return [(leaf, other[path]) for path, leaf in mine.items()]
    shapes = [leaf.shape for leaf in ours if leaf.values is not None]
    if not mine.keys() & other.keys() and shapes:
        dense = [leaf for leaf in theirs if leaf.values is not None]
        if shapes == [leaf.shape for leaf in dense]:
            paired.notes.append("the outputs have other names: compared in order")
            return list(zip((leaf for leaf in ours if leaf.values is not None), dense, strict=True))
    missing = [p or "the output" for p in mine.keys() - other.keys()]
    extra = [p or "an output" for p in other.keys() - mine.keys()]
    if missing:
        paired.differences.append(f"{prefix}missing: {', '.join(sorted(missing)[:5])}")
    if extra and not prefix:
        words = f"not in the baseline: {', '.join(sorted(extra)[:5])}"
        (paired.differences if missing else paired.notes).append(words)
    return [(leaf, other[path]) for path, leaf in mine.items() if path in other]


def _other_inputs(paired: Paired, baseline: Evidence, candidate: Evidence) -> None:
    """Pair outputs on other input values. Declared inputs are the same tensors for both variants,
    so the results must be equal again; a memorised answer is not."""
    if _start_alike(baseline, candidate, ("declared",)):
        outputs = _on_other_content(baseline, candidate, "inputs")
        if outputs is not None:
            _outputs(paired, "on other inputs, ", "other inputs", *outputs)


def on_other_content(baseline: Evidence, candidate: Evidence) -> list[Pair]:
    """Pair outputs on other values in all shared tensors. Only done if both hold the same tensors
    and nothing computed from them: an earlier copy would rightly keep the old values."""
    roles = ("declared", "captured", "parameter", "buffer")
    if candidate.caches or candidate.unread or not _start_alike(baseline, candidate, roles):
        return []
    outputs, paired = _on_other_content(baseline, candidate, "all"), Paired()
    if outputs is not None:
        _outputs(paired, "", "other inputs", *outputs)
    return paired.pairs


def _on_other_content(
    baseline: Evidence, candidate: Evidence, group: str
) -> tuple[Outputs, Outputs] | None:
    had_nans = any(leaf.nans for leaf in baseline.outputs[0].leaves)
    for how in (f"{group} rolled", f"{group} scaled"):
        ours, theirs = fresh_named(baseline, how), fresh_named(candidate, how)
        if ours is None or theirs is None or ours.outputs is None or theirs.outputs is None:
            continue
        if ours.names != theirs.names:
            continue
        if had_nans or not any(leaf.nans for leaf in ours.outputs.leaves):
            return ours.outputs, theirs.outputs  # else the baseline itself fails on these values
    return None


def fresh_named(evidence: Evidence, how: str) -> Fresh | None:
    return next((fresh for fresh in evidence.fresh if fresh.how == how), None)


def _start_alike(baseline: Evidence, candidate: Evidence, roles: tuple[str, ...]) -> bool:
    """Return whether both hold tensors of the same names and values."""

    def held(evidence: Evidence) -> set[object]:
        tensors = [tensor for tensor in evidence.held if tensor.role in roles]
        return {(t.name, t.shape, t.dtype, t.digest) for t in tensors}

    return bool(held(baseline)) and held(baseline) == held(candidate)


def _state(paired: Paired, baseline: Evidence, candidate: Evidence) -> None:
    """Pair the state after the calls. Parameters and buffers always count. Gradients are only a
    by-product once a step has changed parameters, and other tensors may be scratch: they count if
    nothing else does."""
    ours, theirs = _by_role(baseline.state), _by_role(candidate.state)
    reached = {tensor.name for tensor in candidate.held}
    for role in _TRAINED:
        _state_role(paired, role, ours, theirs, baseline, reached)
    if not ours.get("parameter"):
        _state_role(paired, "gradient", ours, theirs, baseline, reached)
    returned = any(_has_values(outputs.leaves) for outputs in baseline.outputs)
    if not returned and not any(ours.get(role) for role in (*_TRAINED, "gradient")):
        _state_role(paired, "captured", ours, theirs, baseline, reached)
        _state_role(paired, "declared", ours, theirs, baseline, reached)


def _state_role(
    paired: Paired,
    role: str,
    ours: dict[str, list[Changed]],
    theirs: dict[str, list[Changed]],
    baseline: Evidence,
    reached: set[str],
) -> None:
    mine, other = ours.get(role, []), theirs.get(role, [])
    if not mine:
        return
    if not other:
        shown = ", ".join(changed.name for changed in mine[:3])
        what = f"{len(mine)} {_plural(role, len(mine))} ({shown}{', …' if len(mine) > 3 else ''})"
        paired.differences.append(f"the baseline changes {what}; the candidate changes none")
        return
    by_name = {changed.name: changed for changed in other}
    unchanged = [c.name for c in mine if c.name not in by_name and c.name in reached]
    if unchanged and len(other) < len(mine):
        shown = ", ".join(unchanged[:3]) + (", …" if len(unchanged) > 3 else "")
        paired.differences.append(f"the baseline changes {shown}; the candidate does not")
        return
    if all(changed.name in by_name for changed in mine):
        partners = [by_name[changed.name] for changed in mine]
    elif [c.after.shape for c in mine] == [c.after.shape for c in other]:
        partners = list(other)
    else:
        paired.notes.append(
            f"{_plural(role, 2)} could not be compared: {len(mine)} change in the baseline, "
            f"{len(other)} others in the candidate"
        )
        return
    names = [c.name for c in baseline.state]
    references = dict(zip(names, baseline.reference.state, strict=False))
    nudged = dict(zip(names, baseline.nudged_state, strict=False))
    for changed, partner in zip(mine, partners, strict=True):
        paired.pairs.append(
            Pair(
                path=f"{changed.name} after the calls",
                role=role,
                baseline=changed.after,
                candidate=partner.after,
                reference=references.get(changed.name),
                partial=paired.partial,
                before=changed.before,
                nudged=_nudge(nudged.get(changed.name), changed.after, changed.before),
            )
        )


def _plural(role: str, count: int) -> str:
    names = {"captured": "tensor", "declared": "input"}
    return names.get(role, role) + ("s" if count != 1 else "")


def _by_role(state: Iterable[Changed]) -> dict[str, list[Changed]]:
    by_role: dict[str, list[Changed]] = {}
    for changed in state:
        by_role.setdefault(changed.role, []).append(changed)
    return by_role


def _by_path(outputs: Outputs | None) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in outputs.leaves} if outputs is not None else {}


def _has_values(leaves: Iterable[Leaf]) -> bool:
    return any(leaf.kind != "nothing" for leaf in leaves)

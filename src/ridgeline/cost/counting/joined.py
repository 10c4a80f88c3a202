"""Forward as inference runs it, backward as training does: one Cost from two accounts.

Dropout, batch statistics and the attention path differ between the two modes; someone asking for a
model's forward cost means the one it is served with.
"""

from ridgeline.cost.counting.totals import assemble
from ridgeline.records.cost import Cost, ModuleCost, Phase, Totals


def join(inference: Cost, training: Cost) -> Cost:
    served = {m.path: m for m in inference.modules}
    ops = (
        *(o for o in inference.ops if o.phase == "forward"),
        *(o for o in training.ops if o.phase != "forward"),
    )
    modules = tuple(_joined_module(served.get(m.path), m) for m in training.modules)
    notes = tuple(dict.fromkeys((*inference.notes, *training.notes)))
    return assemble(ops, modules, inference.backend, notes)


def _joined_module(served: ModuleCost | None, trained: ModuleCost) -> ModuleCost:
    phases: dict[Phase, Totals] = {p: t for p, t in trained.phases.items() if p != "forward"}
    if served is not None and "forward" in served.phases:
        phases = {"forward": served.phases["forward"], **phases}
    return ModuleCost(
        path=trained.path,
        type=trained.type,
        calls=served.calls if served is not None else trained.calls,
        parameters=trained.parameters,
        phases=phases,
        activation_bytes=trained.activation_bytes,
    )

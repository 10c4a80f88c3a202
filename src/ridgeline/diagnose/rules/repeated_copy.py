"""The same tensor is copied to the device every step."""

from collections.abc import Iterator

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._copies import (
    LEAST,
    Sent,
    evidence,
    holds_up,
    named,
    repeated,
    sent,
)
from ridgeline.diagnose.rules._launch import bound_ahead
from ridgeline.records.finding import Evidence, Finding
from ridgeline.units import bytes_, percent

RULE = Rule(
    id="repeated-copy",
    family="transfer",
    title="The same tensor is copied to the device every step",
    budget="transfer",
    needs=("trace", "gpu", "stacks"),
    looks_at="Copies to the device in every step, and the source of the line that asks: what is "
    "copied is set before the loop, in `__init__` or at the top of the file, or is a constant made "
    "on the spot, and nothing in the loop changes it.",
    threshold="1 % of the step held up.",
    why="A table of positions, a mask or class weights are the same in every step. Copied once "
    "they cost nothing; copied every step they take the bus, hold the host (their memory is seldom "
    "pinned), and leave the device idle.",
    fix="""Copy it once.

```python
weights = weights.to(device)                    # before the loop

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", table, persistent=False)     # moves with model.to(device)
```

Constants: make them on the device (`torch.arange(n, device=x.device)`).""",
    wrong_when="Something the source does not show changes the tensor in place between steps; or "
    "it is kept on the host on purpose, since the device has no room for it.",
)


def look(case: Case) -> Iterator[Finding]:
    for one in sent(case):
        if one.line is None or not repeated(case, one):
            continue
        share = holds_up(case, one)
        if share < LEAST:
            continue
        kind = "not pinned" if one.pageable else "pinned"
        yield found(
            RULE,
            claim=f"{named(one)} moves the same {bytes_(one.bytes)} to the GPU every step: "
            f"{percent(share)} of it",
            share=share,
            bound=bound_ahead(case, share),
            evidence=[
                *evidence(case, one, share),
                Evidence(
                    what="what is copied",
                    text=f"{one.line.on or one.line.expression}: nothing in the loop sets it; its "
                    f"memory is {kind}",
                    source="read",
                ),
            ],
            place=one.place,
            line=one.line.number,
            change=_change(one),
            confidence="high",
        )


def _change(one: Sent) -> str:
    assert one.line is not None
    on, call = one.line.on, one.line.expression
    if on.startswith("self.") and on.count(".") == 1:
        name = on.removeprefix("self.")
        return (
            f'self.register_buffer("{name}", {name}, persistent=False)  # in __init__\n'
            f"{one.line.text.replace(call, on, 1)}"
        )
    if on.isidentifier() and on != "torch":
        return f"{on} = {call}  # once, before the loop\n{one.line.text.replace(call, on, 1)}"
    return (
        f"constant = {call}  # once, before the loop\n{one.line.text.replace(call, 'constant', 1)}"
    )

"""How far apart two honest runs may lie before anything is known of the program: by what the change
may alter and by the precision it computes in. Relative numbers."""

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.parity import Alters

ULP = 2.0**-23
"""Of float32: what losses and prints are kept in."""
GROWING = 12
"""Steps: 1.8 a step over 12 is a factor of a thousand, more than was seen of any program."""
DOUBT, DOUBT_KNOWN = 5.0, 2.0
"""So many times the band is doubted and not refused, where rounding may differ: a unit that
switches at a rounding, which one jittered trial need not meet, moved losses by 2.5 times it. A
jitter of a lower precision's size meets many."""
SWITCHED, SWITCHED_WAY, SWITCHED_BUFFER, SWITCHED_OUTPUT = 0.01, 0.003, 0.05, 0.05
"""Doubted at the least, as such a switch was seen to do as much with losses in the band: 0.4 and
1.1 % of a parameter's way, 7e-5 of the median way, 2.4 % of a running mean's, 5.1 % of an
output that is normalised by such means."""
SWITCHED_GRADIENT = 0.1
"""Of a first gradient: one of 24 units for one of 16 samples is 5 %; 6.8 % seen under TF32."""
DATA = 1e-5
"""Batch sums of the same data differ by the order they are summed in, those of other data by
1e-3 and more."""


class Floor(Struct, frozen=True, kw_only=True):
    loss: float
    gradient: float
    parameter: float
    """Of how far the parameter moved."""
    way: float
    """Of how far the median parameter moved."""
    buffer: float
    """Of how far the buffer moved."""
    evaluation: float
    growth: float
    """A step, over the first GROWING."""
    most: float
    """Nothing that is assumed, and not measured, is allowed more."""
    unit: float
    """Rounding error of the precision, to scale what a jitter of another size did."""

    def grown(self, steps: int) -> float:
        return self.growth ** min(steps, GROWING)

    def known(self) -> "Floor":
        """Where a jitter of this very size says what it does to the program, less is assumed.
        Not of buffers and outputs: those follow biases that move by rounding alone. Of a loss never
        less than one unit: it is one number, which a jitter may leave alone by luck. ResNet-50's
        first was 0.01 to 0.4 % off under bfloat16, 0.006 to 0.4 % under the jitter, over 14 seeds.
        """
        return replace(
            self,
            loss=max(KNOWN * self.loss, self.unit),
            gradient=KNOWN * self.gradient,
            parameter=KNOWN * self.parameter,
            way=KNOWN * self.way,
        )

    def followed(self) -> "Floor":
        """Where biases before batch norms move by rounding alone, running means go with them: 0.1 %
        of their way after 8 steps of Adam in float32."""
        return replace(self, buffer=max(self.buffer, 0.02), evaluation=max(self.evaluation, 0.005))


KNOWN = 0.2
"""Autocast to bfloat16 differed by 0.1 to 4 times what a jitter of its size did, and that by 2e-4
in the losses and 5e-3 in the parameters of small programs: a fifth of what is assumed of all."""


EXACT = Floor(
    # The program itself does the same arithmetic. What is left: our own sums over tensors that
    # lie at other addresses, where the vector loop starts elsewhere, 1 to 4 ulps, and what the
    # program makes of such an ulp of its own.
    loss=8 * ULP, gradient=16 * ULP, parameter=64 * ULP, way=32 * ULP, buffer=64 * ULP,
    evaluation=16 * ULP, growth=1.15, most=1e-4, unit=ULP,
)  # fmt: skip
_ROUNDING = {
    "float64": Floor(
        loss=1e-13, gradient=1e-12, parameter=1e-11, way=1e-12, buffer=1e-12, evaluation=1e-12,
        growth=1.8, most=1e-4, unit=2.0**-52,
    ),
    # Reordered sums: 2e-7 for a fused optimizer or a compiled GPT, 6e-5 after 10 steps for a
    # batch-norm network in channels_last; 2e-5 after 5 steps for one of 6 convolutions and SGD.
    "float32": Floor(
        loss=3e-6, gradient=5e-5, parameter=1e-4, way=2e-5, buffer=5e-5, evaluation=2e-5,
        growth=1.8, most=0.05, unit=ULP,
    ),
    "tf32": Floor(
        loss=2e-3, gradient=1e-2, parameter=3e-2, way=1e-2, buffer=1e-2, evaluation=1e-2,
        growth=1.15, most=0.25, unit=2.0**-11,
    ),
    "float16": Floor(
        loss=5e-3, gradient=2e-2, parameter=5e-2, way=1e-2, buffer=2e-2, evaluation=3e-2,
        growth=1.15, most=0.25, unit=2.0**-11,
    ),
    # 2e-5 to 1e-2 seen on losses of eight programs; 18 % after 33 steps on a memorised batch.
    "bfloat16": Floor(
        loss=1e-2, gradient=5e-2, parameter=0.1, way=2e-2, buffer=5e-2, evaluation=5e-2,
        growth=1.15, most=0.25, unit=2.0**-8,
    ),
}  # fmt: skip
_NAMES = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "half": "float16",
          "bf16": "bfloat16", "tensorfloat32": "tf32"}  # fmt: skip


def floor_of(alters: Alters, precision: str) -> Floor:
    """An unknown precision (float8, int8) is given what the coarsest known one is."""
    if alters == "nothing":
        return EXACT
    name = precision.removeprefix("torch.").lower()
    return _ROUNDING.get(_NAMES.get(name, name), _ROUNDING["bfloat16"])

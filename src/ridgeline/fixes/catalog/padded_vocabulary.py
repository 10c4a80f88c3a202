"""Products of a large vocabulary padded to whole tiles."""

from collections.abc import Mapping
from typing import Any

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.model_forward import Forward, fixes_around, wrap_forward
from ridgeline.fixes.program import Model, Program
from ridgeline.records.edit import Edit, Import, Replace, Top
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied
from ridgeline.source.program import layer_calls

TILE = 64
MIN_WIDTH = 1024
"""For a narrower layer the padding, up to 63 columns, costs more than it gains."""
FIX = Fix(
    id="padded-vocabulary",
    group="model",
    title="padded vocabulary",
    usual=True,
    alters="rounding",
    precision="bfloat16",
    answers=("misaligned-shape",),
    together=("autocast",),
    why="Rows of the logits that are no multiple of 16 bytes are read element by element. The "
    "weight is padded with zeros in the product and the extra columns are cut off: the same "
    "logits, the parameter as it was.",
    wrong_when="The program views the logits as one row: they are no longer contiguous.",
)


def reason_to_skip(ground: Ground) -> Reason | None:
    if ground.device != "cuda":
        return because(Skip.NO_GPU)
    if ground.capability < (7, 0):
        return because(Skip.GPU_LACKS, feature="tensor cores")
    if not (ground.odd_widths or "misaligned-shape" in ground.findings):
        return because(Skip.NO_ODD_WIDTH, multiple=TILE)
    kinds = {kind for module in ground.modules for kind in module.dtypes}
    own = any(ground.autocast) or not kinds or kinds & {"bfloat16", "float16"}
    return None if own or ground.in_16_bits else because(Skip.NO_16_BIT_PRODUCTS)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def pad(model: Model) -> Reason | tuple[Reason, ...]:
        heads = [
            (name, one)
            for name, one in model.inner.named_modules()
            if type(one) is torch.nn.Linear and padding(one.out_features) and one.weight.is_cuda
        ]
        small = torch.is_autocast_enabled(model.device) or any(
            fix.startswith("autocast") for fix in fixes_around(model.inner)
        )
        halves = (torch.bfloat16, torch.float16)
        fit = [(name, one) for name, one in heads if small or one.weight.dtype in halves]
        if not fit:
            no_width = because(Skip.NO_ODD_WIDTH, multiple=TILE)
            return because(Skip.NO_16_BIT_PRODUCTS) if heads else no_width
        for _, head in fit:
            wrap_forward(head, FIX.id, lambda forward: padded(torch, forward))
        return tuple(
            because(
                Done.PADDED_LAYER, layer=name, width=one.out_features + padding(one.out_features)
            )
            for name, one in fit
        )

    program.on_model(FIX.id, pad)


def padding(size: int) -> int:
    """Return how many columns must be added."""
    return -size % TILE if size >= MIN_WIDTH else 0


def padded(torch: Any, forward: Forward) -> Forward:
    functional = torch.nn.functional

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        extra = padding(self.out_features)
        if len(args) != 1 or kwargs or not extra:
            return forward(self, *args, **kwargs)
        weight, bias = self.weight, self.bias
        device = weight.device.type
        if torch.is_autocast_enabled(device):  # half the bytes to pad
            small = torch.get_autocast_dtype(device)
            weight = weight.to(small)
            bias = None if bias is None else bias.to(small)
        weight = functional.pad(weight, (0, 0, 0, extra))
        bias = None if bias is None else functional.pad(bias, (0, extra))
        return functional.linear(args[0], weight, bias)[..., : self.out_features]

    return under


CODE = f'''\
def padded_linear(layer, given):
    """layer(given) with its columns padded with zeros to whole tiles, which are cut off again."""
    extra = -layer.out_features % {TILE}
    weight, bias = layer.weight, layer.bias
    device = weight.device.type
    if torch.is_autocast_enabled(device):  # half the bytes to pad
        small = torch.get_autocast_dtype(device)
        weight, bias = weight.to(small), None if bias is None else bias.to(small)
    weight = torch.nn.functional.pad(weight, (0, 0, 0, extra))
    bias = None if bias is None else torch.nn.functional.pad(bias, (0, extra))
    return torch.nn.functional.linear(given, weight, bias)[..., : layer.out_features]'''


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    """Edit the calls of those layers in the classes that have them."""
    why = "rows of the logits are whole tiles of the tensor cores"
    found: list[Edit] = []
    for path in dict.fromkeys(str(one.done.facts["layer"]) for one in applied.targets):
        sites = {site for file, _ in applied.lines for site in layer_calls(source, file, path)}
        if not sites:
            raise EditByHand(ByHand.PADDED_PRODUCT, layer=path, multiple=TILE)
        for file, line, call, layer, given in sorted(sites):
            after = f"padded_linear({layer}, {given})"
            found.append(Replace(file=file, line=line, before=call, after=after, why=why))
            found.append(Top(file=file, where="after imports", text=CODE, why=why))
            found.append(Import(file=file, text="import torch"))
    return tuple(dict.fromkeys(found))

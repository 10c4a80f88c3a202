"""Channels last for convolutions."""

from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.fixes.around import Forward, around
from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.outputs import mapped, tensors
from ridgeline.fixes.program import Model, Program
from ridgeline.fixes.writing import after_made, before_call
from ridgeline.records.edit import Edit
from ridgeline.records.ground import Ground
from ridgeline.records.trial import Applied

FIX = Fix(
    id="channels-last",
    group="model",
    title="channels-last convolutions",
    usual=True,
    alters="rounding",
    slot="layout",
    answers=("layout-transposes",),
    together=("autocast",),
    why="Tensor cores read images with the channels innermost; otherwise cuDNN turns them around "
    "for every layer.",
    wrong_when="Operators between the convolutions want the other order: each then copies. A "
    "`view` of an image raises: `reshape` or `flatten` is needed there.",
)


def reason_to_skip(ground: Ground) -> str:
    return "" if ground.convolutions else "no convolution was seen"


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def lay_out(model: Model) -> str:
        inner = model.inner
        if inner is not model.module:
            program.found_nothing(
                FIX.id, "the model is in DDP, which laid out its gradients when it was made"
            )
            return ""
        found = _formats(torch, inner)
        if not found:
            program.found_nothing(FIX.id, "no convolution of two or three dimensions is in it")
            return ""
        given = tensors(torch, (model.args, model.kwargs))
        if not _laid_out(torch, inner) and all(_stands(torch, found, one) for one in given):
            program.found_nothing(FIX.id, "its convolutions and images are laid out so already")
            return ""
        around(inner, FIX.id, lambda forward: _with_images(torch, found, forward), outside=True)
        first = model.args[0] if model.args else None
        image = isinstance(first, torch.Tensor) and first.dim() in found
        with_it = " and its images" if image else ""
        return f"{type(inner).__name__}{with_it} in {' and '.join(found.values())}"

    program.on_model(FIX.id, lay_out)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    kind, _, rest = applied.what.partition("; ")[0].partition(" in ")
    kind, _, images = kind.partition(" and its ")
    if " and " in rest:
        raise EditByHand(
            "convolutions of two and of three dimensions are in one model; turn each one's weight: "
            "conv.weight.data = conv.weight.data.to(memory_format=torch.channels_last)"
        )
    to = f".to(memory_format=torch.{rest})"
    found = after_made(applied, source, "{name}" + to, "channels innermost", kind)
    if images:
        turned = "{given} = {given}" + to
        found += before_call(applied, source, turned, "as the convolutions read it", kind)
    return found


def _convolutions(torch: Any, model: Any) -> Iterator[tuple[Any, int, str]]:
    """Each, the dimensions of its images, and their format."""
    nn = torch.nn
    for module in model.modules():
        for kinds, rank, name in (
            ((nn.Conv2d, nn.ConvTranspose2d), 4, "channels_last"),
            ((nn.Conv3d, nn.ConvTranspose3d), 5, "channels_last_3d"),
        ):
            if isinstance(module, kinds) and module.weight.dim() == rank:
                yield module, rank, name


def _formats(torch: Any, model: Any) -> dict[int, str]:
    """Dimensions of an image to its format, of the convolutions there are."""
    return {rank: name for _, rank, name in _convolutions(torch, model)}


def _laid_out(torch: Any, model: Any) -> bool:
    """Whether a weight had to be turned. Theirs alone: another parameter of four dimensions may be
    viewed as something else. By `to`, as the source is written: a weight of one by one lies right
    as it is, and `contiguous` would leave it strides that are compiled otherwise."""
    turned = False
    for module, _, name in _convolutions(torch, model):
        to, weight = getattr(torch, name), module.weight
        turned = turned or not weight.is_contiguous(memory_format=to)
        weight.data = weight.data.to(memory_format=to)
    return turned


def _stands(torch: Any, formats: dict[int, str], tensor: Any) -> bool:
    """No image, or one that is laid out so."""
    name = formats.get(tensor.dim()) if tensor.is_floating_point() else None
    return name is None or tensor.is_contiguous(memory_format=getattr(torch, name))


def _with_images(torch: Any, formats: dict[int, str], forward: Forward) -> Forward:
    known = {rank: getattr(torch, name) for rank, name in formats.items()}

    def last(tensor: Any) -> Any:
        if _stands(torch, formats, tensor):
            return tensor
        return tensor.to(memory_format=known[tensor.dim()])

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *mapped(torch, args, last), **mapped(torch, kwargs, last))

    return under

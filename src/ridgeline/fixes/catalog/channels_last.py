"""Channels-last memory layout for convolutions."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ridgeline.fixes.fix import EditByHand, Fix, Source
from ridgeline.fixes.model_edits import Facts, after_made, before_call
from ridgeline.fixes.model_forward import Forward, map_tensors, tensors_in, wrap_forward
from ridgeline.fixes.program import Model, Program, is_replicated
from ridgeline.records.edit import Edit
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
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


def reason_to_skip(ground: Ground) -> Reason | None:
    return None if ground.convolutions else because(Skip.NO_CONVOLUTION)


def apply(program: Program, options: Mapping[str, str]) -> None:
    torch = program.torch

    def lay_out(model: Model) -> Reason:
        inner = model.inner
        obstacle = _wrapper_obstacle(model)
        if obstacle is not None:
            return obstacle
        formats = _formats(torch, inner)
        if not formats:
            return because(Skip.NO_CONVOLUTION)
        given = tensors_in(torch, (model.args, model.kwargs))
        if not _lay_out_weights(torch, inner) and all(_is_last(torch, formats, t) for t in given):
            return because(Skip.ALREADY_SET, setting="channels last")
        wrap_forward(inner, FIX.id, lambda f: _with_images(torch, formats, f), outside=True)
        first = model.args[0] if model.args else None
        images = isinstance(first, torch.Tensor) and first.dim() in formats
        memory_format = next(iter(formats.values())) if len(formats) == 1 else ""
        return because(
            Done.CHANNELS_LAST, model=model.name, memory_format=memory_format, images=images
        )

    program.on_model(FIX.id, lay_out)


def source_edits(applied: Applied, source: Source) -> tuple[Edit, ...]:
    if not all(one.done.facts["memory_format"] for one in applied.targets):
        raise EditByHand(ByHand.LAYOUT_OF_EACH)

    def to_format(facts: Facts, name: str) -> str:
        return f"{name}.to(memory_format=torch.{facts['memory_format']})"

    def input_to_format(facts: Facts, name: str) -> str:
        return f"{name} = {to_format(facts, name)}"

    edits = after_made(applied, source, to_format, "channels innermost")
    with_images = tuple(one for one in applied.targets if one.done.facts["images"])
    if with_images:
        turned, why = replace(applied, targets=with_images), "as the convolutions read it"
        edits += before_call(turned, source, input_to_format, why, of_input=True)
    return edits


def _wrapper_obstacle(model: Model) -> Reason | None:
    """Return why what is around the model does not let its weights be laid out; None if it does. A
    DataParallel on one device and Lightning's Fabric call the model as it is."""
    if is_replicated(model.inner):
        return because(Skip.REPLICATED)
    module = model.module
    while module is not model.inner:
        if type(module).__name__ == "DistributedDataParallel":
            return because(Skip.WRAPPED_IN_DDP)
        module = module.module
    return None


def _convolutions(torch: Any, model: Any) -> Iterator[tuple[Any, int, str]]:
    """Yield each convolution, the dimensions of its images, and their memory format."""
    nn = torch.nn
    for module in model.modules():
        for kinds, rank, name in (
            ((nn.Conv2d, nn.ConvTranspose2d), 4, "channels_last"),
            ((nn.Conv3d, nn.ConvTranspose3d), 5, "channels_last_3d"),
        ):
            if isinstance(module, kinds) and module.weight.dim() == rank:
                yield module, rank, name


def _formats(torch: Any, model: Any) -> dict[int, str]:
    """Return the memory format of images by their number of dimensions."""
    return {rank: name for _, rank, name in _convolutions(torch, model)}


def _lay_out_weights(torch: Any, model: Any) -> bool:
    """Lay out the weights of the convolutions, and return whether one was not laid out so before.
    Other parameters of four dimensions stay: they may be viewed as something else. `to` is what the
    patched source calls: a weight of one by one lies right as it is, and `contiguous` would leave
    it strides that are compiled otherwise."""
    turned = False
    for module, _, name in _convolutions(torch, model):
        to, weight = getattr(torch, name), module.weight
        turned = turned or not weight.is_contiguous(memory_format=to)
        weight.data = weight.data.to(memory_format=to)
    return turned


def _is_last(torch: Any, formats: dict[int, str], tensor: Any) -> bool:
    """Return whether the tensor is not an image, or one that is laid out so."""
    name = formats.get(tensor.dim()) if tensor.is_floating_point() else None
    return name is None or tensor.is_contiguous(memory_format=getattr(torch, name))


def _with_images(torch: Any, formats: dict[int, str], forward: Forward) -> Forward:
    known = {rank: getattr(torch, name) for rank, name in formats.items()}

    def last(tensor: Any) -> Any:
        if _is_last(torch, formats, tensor):
            return tensor
        return tensor.to(memory_format=known[tensor.dim()])

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *map_tensors(torch, args, last), **map_tensors(torch, kwargs, last))

    return under

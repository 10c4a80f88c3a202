"""One greedy decoding step of a causal language model, whatever its call looks like.

Two kinds are known: modules that take `past_key_values` and `use_cache` and return an object with
`logits` (Hugging Face), and plain modules that map ids [B, S] to logits [B, S, V], alone, first in
a tuple, or as an attribute or entry of what they return. Knows no clock.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ridgeline.errors import OutOfMemoryError, RidgelineError, TargetError, UsageError

if TYPE_CHECKING:
    import torch

# As Hugging Face, GPT-2, nanoGPT and Llama's own code call it; the first one found counts.
_LIMIT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "block_size")


class Decoder:
    """Chooses the next token. `past` travels from step to step where the model keeps a cache."""

    def __init__(self, model: "torch.nn.Module") -> None:
        config = getattr(model, "config", None)
        if _entry(config, "is_encoder_decoder"):
            raise RidgelineError(
                f"{type(model).__name__} is an encoder-decoder: only decoder-only models "
                "can be timed token by token",
                hint="time its decoder alone, or its whole forward with a latency study",
            )
        self._model = model
        self._takes = _parameters(model)
        self.takes_cache = {"past_key_values", "use_cache"} <= self._takes
        self.limit = _position_limit(model, config)

    def whole(self, ids: "torch.Tensor") -> "torch.Tensor":
        """The next token [B, 1], from the whole sequence and no cache."""
        keywords = self._last_logits_only() | ({"use_cache": False} if self.takes_cache else {})
        return _greedy(self._run(ids, int(ids.shape[1]), **keywords))

    def begin(self, ids: "torch.Tensor") -> tuple["torch.Tensor", Any]:
        """The first token, and the cache of the prompt: None where the model returned none."""
        output = self._run(ids, int(ids.shape[1]), use_cache=True, **self._last_logits_only())
        return _greedy(output), _entry(output, "past_key_values")

    def extend(self, token: "torch.Tensor", past: Any, position: int) -> tuple["torch.Tensor", Any]:
        """The next token from the last one and the cache of `position` tokens before it."""
        output = self._run(token, position + 1, use_cache=True, past_key_values=past)
        return _greedy(output), _entry(output, "past_key_values")

    def _last_logits_only(self) -> dict[str, Any]:
        """As `generate` does: logits of the whole prompt over 128 k words would be most of the
        first token's time on a small model, and are thrown away."""
        return {"logits_to_keep": 1} if "logits_to_keep" in self._takes else {}

    def _run(self, ids: "torch.Tensor", position: int, **keywords: Any) -> Any:
        import torch

        try:
            return self._model(ids, **keywords)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"out of memory at position {position}: {_first_line(error)}",
                hint="a shorter prompt, fewer tokens or a smaller batch",
            ) from error
        except RidgelineError:
            raise
        except Exception as error:
            raise TargetError(
                f"{type(self._model).__name__} failed at position {position} "
                f"(ids of shape {list(ids.shape)}): {type(error).__name__}: {_first_line(error)}",
                hint="the model may allow fewer positions, or ids below its vocabulary's size",
            ) from error


@contextmanager
def evaluating(model: "torch.nn.Module") -> Iterator[None]:
    """eval() and inference mode; each module's own training flag is put back, since a model may
    hold frozen parts in eval on purpose."""
    import torch

    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, flag in flags:
            module.training = flag


def checked_prompt(prompt_ids: "torch.Tensor", device: str) -> "torch.Tensor":
    """The prompt as ids [B, S] on the device."""
    import torch

    ids = torch.as_tensor(prompt_ids)
    if ids.ndim == 1:
        ids = ids.unsqueeze(0)
    if ids.ndim != 2 or ids.numel() == 0 or ids.is_floating_point() or ids.is_complex():
        raise UsageError(
            f"the prompt is {ids.dtype} of shape {list(ids.shape)}: "
            "expected whole token ids of shape [batch, tokens]"
        )
    return ids.to(device=device, dtype=torch.long)


def _greedy(output: Any) -> "torch.Tensor":
    logits = next(_logits(output), None)
    if logits is None:
        raise TargetError(
            f"the model returned {_describe(output)}: expected logits of shape "
            "[batch, tokens, vocabulary] to choose a token from"
        )
    return logits[:, -1:].argmax(dim=-1)


def _logits(output: Any) -> Iterator["torch.Tensor"]:
    """Three-dimensional float tensors in what a model returned; `logits` before any other."""
    import torch

    if isinstance(output, torch.Tensor):
        if output.ndim == 3 and output.is_floating_point():
            yield output
        return
    named = _entry(output, "logits")
    if named is not None:
        yield from _logits(named)
    items: Iterable[Any] = ()
    if isinstance(output, Mapping):
        items = output.values()
    elif isinstance(output, tuple | list):
        items = output
    elif hasattr(output, "__dict__"):
        items = vars(output).values()
    for item in items:
        if isinstance(item, torch.Tensor | tuple | list):
            yield from _logits(item)


def _parameters(model: "torch.nn.Module") -> frozenset[str]:
    try:
        return frozenset(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):  # a scripted or C++ forward: then it is called plainly
        return frozenset()


def _position_limit(model: object, config: object) -> int | None:
    for name in _LIMIT_NAMES:
        for owner in (config, _entry(config, "text_config"), model):
            limit = _entry(owner, name)
            if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
                return limit
    return None


def _entry(owner: object, name: str) -> Any:
    """An attribute, or an entry where the owner is a mapping; None where there is neither."""
    if isinstance(owner, Mapping):
        return owner.get(name)
    return getattr(owner, name, None)


def _describe(output: Any) -> str:
    shape = getattr(output, "shape", None)
    return f"a {type(output).__name__}" + (f" of shape {list(shape)}" if shape is not None else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]

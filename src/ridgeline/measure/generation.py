"""Timing of greedy generation by a causal language model, with and without a key-value cache.

Two kinds of model are supported: modules that take `past_key_values` and `use_cache` and return an
object with `logits` (Hugging Face), and plain modules that map ids [B, S] to logits [B, S, V]. The
logits may be returned alone, first in a tuple, or as an attribute or entry of the output.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ridgeline.errors import OutOfMemoryError, RidgelineError, TargetError, UsageError

if TYPE_CHECKING:
    import torch
from collections.abc import Callable, Sequence

import numpy as np

from ridgeline.measure.clock import Clock, clock_for
from ridgeline.records.latency import Generation, TokenTimes
from ridgeline.statistics.samples import summarize, trend

# The names of the limit in Hugging Face, GPT-2, nanoGPT and Llama; the first that exists is used.
_POSITION_LIMIT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "block_size",
)


class Decoder:
    """Chooses the next token. `past` is the key-value cache, which the caller passes from step to
    step."""

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
        """Return the next token [B, 1], computed from the whole sequence without a cache."""
        keywords = self._last_logits_only() | ({"use_cache": False} if self.takes_cache else {})
        return _greedy(self._run(ids, int(ids.shape[1]), **keywords))

    def begin(self, ids: "torch.Tensor") -> tuple["torch.Tensor", Any]:
        """Return the first token, and the cache of the prompt; None if the model returned none."""
        output = self._run(ids, int(ids.shape[1]), use_cache=True, **self._last_logits_only())
        return _greedy(output), _entry(output, "past_key_values")

    def extend(self, token: "torch.Tensor", past: Any, position: int) -> tuple["torch.Tensor", Any]:
        """Return the next token and the new cache, computed from the last token and the cache of
        the `position` tokens before it."""
        output = self._run(token, position + 1, use_cache=True, past_key_values=past)
        return _greedy(output), _entry(output, "past_key_values")

    def _last_logits_only(self) -> dict[str, Any]:
        """Return the argument that limits logits to the last position, as `generate` of Hugging
        Face does. Logits of the whole prompt over 128 k words would take most of the first token's
        time on a small model, and only the last are used."""
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
    """Put the model in eval and inference mode. Afterwards each module gets its own training flag
    back, because a model may keep frozen parts in eval mode on purpose."""
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
    """Return the prompt as ids [B, S] on the device."""
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
    """Yield the three-dimensional float tensors in the output of a model, `logits` first."""
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
    except (TypeError, ValueError):  # a scripted or C++ forward has no signature
        return frozenset()


def _position_limit(model: object, config: object) -> int | None:
    for name in _POSITION_LIMIT_NAMES:
        for owner in (config, _entry(config, "text_config"), model):
            limit = _entry(owner, name)
            if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
                return limit
    return None


def _entry(owner: object, name: str) -> Any:
    """Return an attribute, or an entry if the owner is a mapping; None if there is none."""
    if isinstance(owner, Mapping):
        return owner.get(name)
    return getattr(owner, name, None)


def _describe(output: Any) -> str:
    shape = getattr(output, "shape", None)
    return f"a {type(output).__name__}" + (f" of shape {list(shape)}" if shape is not None else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


_MIN_POSITIONS = 3  # first, middle and last are the fewest that show growth
_MAX_REPEATS = 100


def time_generation(
    model: "torch.nn.Module",
    prompt_ids: "torch.Tensor",
    new_tokens: int,
    device: str,
    budget_s: float,
    *,
    clock: Clock | None = None,
) -> Generation:
    """Time the greedy generation of `new_tokens` after `prompt_ids` ([B, S] or [S]), with and
    without a key-value cache. `model` must be on `device` already. Generation with a cache gets
    half of the budget and that without gets the other half; one pass of each is always made."""
    if new_tokens < 2:
        raise UsageError(f"{new_tokens} new tokens: two at least show the time per token")
    decoder = Decoder(model)
    clock = clock or clock_for(device)
    prompt = checked_prompt(prompt_ids, device)
    notes: list[str] = []
    new_tokens = _allowed(decoder, int(prompt.shape[1]), new_tokens, notes)
    with evaluating(model):
        bench = _Bench(decoder, prompt, clock, budget_s * 1e9 / 2)
        return bench.generation(new_tokens, notes)


def _allowed(decoder: Decoder, prompt: int, new_tokens: int, notes: list[str]) -> int:
    """Return how many tokens fit the model's positions. The last token is never an input."""
    if decoder.limit is None or prompt + new_tokens - 1 <= decoder.limit:
        return new_tokens
    room = decoder.limit - prompt + 1
    if room < 2:
        raise UsageError(
            f"the model has {decoder.limit} positions and the prompt takes {prompt}: "
            "no room to generate two tokens",
            hint="a shorter prompt",
        )
    notes.append(f"the model has {decoder.limit} positions: {room} of {new_tokens} tokens timed")
    return room


class _Bench:
    """Times one decoder on one prompt. Generation with and without a cache may take `share_ns`
    each."""

    def __init__(
        self, decoder: Decoder, prompt: "torch.Tensor", clock: Clock, share_ns: float
    ) -> None:
        self.decoder = decoder
        self.prompt = prompt
        self.clock = clock
        self.share_ns = share_ns
        self.length = int(prompt.shape[1])

    def generation(self, new_tokens: int, notes: list[str]) -> Generation:
        cached_runs, text = self._cached(new_tokens, notes)
        first_ns = [run[0] for run in cached_runs]
        tokens = int(text.shape[1]) - self.length if cached_runs else new_tokens
        if not cached_runs:
            first_ns, text = self._first_tokens(tokens)
        positions = self._positions(tokens, notes)
        uncached_rows, chosen = self._uncached(text, positions)
        uncached = _token_times(positions, uncached_rows)
        cached, same = None, None
        if cached_runs:
            every = tuple(range(self.length + 1, self.length + tokens))
            cached = _token_times(every, [run[1:] for run in cached_runs])
            same = all(bool((text[:, at : at + 1] == token).all()) for at, token in chosen)
            if not same:
                notes.append(
                    "with and without cache the model chose different tokens: rounding at a tie, "
                    "or a cache that is not equal"
                )
        return Generation(
            batch=int(self.prompt.shape[0]),
            prompt_tokens=self.length,
            tokens=tokens,
            first_token_ms=summarize(first_ns).median_ns / 1e6,
            first_token=summarize(first_ns),
            uncached_token_ms=uncached.summary.median_ns / 1e6,
            uncached=uncached,
            cached_token_ms=cached.summary.median_ns / 1e6 if cached else None,
            cached=cached,
            cache_speedup=(
                uncached.summary.median_ns / cached.summary.median_ns if cached else None
            ),
            same_tokens=same,
            clock="wall" if self.clock.name == "wall" else "wall, device synchronised",
            notes=tuple(notes),
        )

    def _cached(
        self, new_tokens: int, notes: list[str]
    ) -> tuple[list[list[float]], "torch.Tensor"]:
        """Return the token times of each run with a cache, and the generated text. The prompt and
        one token warm up. A run that takes longer than its share is cut short."""
        if not self.decoder.takes_cache:
            notes.append("this model takes no past_key_values: timed without cache only")
            return [], self.prompt
        warm, _ = self._cached_run(2)
        if not warm:
            notes.append("this model returned no past_key_values: timed without cache only")
            return [], self.prompt
        begun = self.clock.now_ns()
        run, text = self._cached_run(new_tokens, stop_ns=self.share_ns)
        reached = len(run)
        if reached < new_tokens:
            notes.append(f"the budget allowed {reached} of {new_tokens} tokens")
        taken = self.clock.now_ns() - begun
        if 2 * taken > self.share_ns:
            return [run], text
        again = self._repeat(lambda: self._cached_run(reached)[0], self.share_ns - taken)
        return [run, *again], text

    def _cached_run(
        self, tokens: int, stop_ns: float = float("inf")
    ) -> tuple[list[float], "torch.Tensor"]:
        """Return the time of each token, and the prompt with the generated text. There are no times
        if the model returns no cache."""
        import torch

        begun = self.clock.now_ns()
        times = []
        (token, past), taken = self._timed(lambda: self.decoder.begin(self.prompt))
        if past is None:
            return [], self.prompt
        times.append(taken)
        text = [self.prompt, token]
        for position in range(self.length, self.length + tokens - 1):
            if len(times) >= 2 and self.clock.now_ns() - begun > stop_ns:
                break
            step = _bound(self.decoder.extend, token, past, position)
            (token, past), taken = self._timed(step)
            times.append(taken)
            text.append(token)
        return times, torch.cat(text, dim=1)

    def _first_tokens(self, tokens: int) -> tuple[list[float], "torch.Tensor"]:
        """Return the first-token times of a model without cache, and a text of the right length.
        The text repeats the first token, because times depend on the length and not on the words.
        """
        import torch

        def first() -> tuple[torch.Tensor, float]:
            return self._timed(lambda: self.decoder.whole(self.prompt))

        token, _ = first()
        times = self._repeat(lambda: first()[1], self.share_ns / 4)
        return times, torch.cat([self.prompt, token.repeat(1, tokens)], dim=1)

    def _positions(self, tokens: int, notes: list[str]) -> tuple[int, ...]:
        """Return the lengths to time without a cache: all, or as many evenly spaced ones as the
        time allows."""
        every = range(self.length + 1, self.length + tokens)
        last = self.prompt.new_zeros((int(self.prompt.shape[0]), every[-1]))
        last[:, : self.length] = self.prompt
        self._timed(lambda: self.decoder.whole(last))
        _, longest = self._timed(lambda: self.decoder.whole(last))
        wanted = min(len(every), _MIN_POSITIONS)
        count = max(wanted, min(len(every), int(self.share_ns / max(longest, 1.0))))
        if count == len(every):
            return tuple(every)
        notes.append(f"without cache, {count} of {len(every)} positions were timed")
        return tuple(int(at) for at in np.linspace(every[0], every[-1], count).round())

    def _uncached(
        self, text: "torch.Tensor", positions: Sequence[int]
    ) -> tuple[list[list[float]], list[tuple[int, "torch.Tensor"]]]:
        """Return rows of times at the positions, and the token chosen at each position."""
        chosen: list[tuple[int, torch.Tensor]] = []

        def run() -> list[float]:
            chosen.clear()
            row = []
            for position in positions:
                token, taken = self._timed(_bound(self.decoder.whole, text[:, :position]))
                chosen.append((position, token))
                row.append(taken)
            return row

        return self._repeat(run, self.share_ns), chosen

    def _repeat(self, run: Callable[[], Any], share_ns: float) -> list[Any]:
        """Run once, and again while another run of the same duration fits `share_ns`."""
        begun = last = self.clock.now_ns()
        rows = [run()]
        while len(rows) < _MAX_REPEATS:
            now = self.clock.now_ns()
            if (now - begun) + (now - last) > share_ns:
                break
            last = now
            rows.append(run())
        return rows

    def _timed(self, step: Callable[[], Any]) -> tuple[Any, float]:
        result: list[Any] = []
        reading = self.clock.time(lambda: result.append(step()), 1)
        return result[0], reading.wall_ns


def _bound(step: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: step(*arguments)


def _token_times(positions: Sequence[int], rows: list[list[float]]) -> TokenTimes:
    by_position = np.median(np.asarray(rows, dtype=np.float64), axis=0)
    return TokenTimes(
        positions=tuple(positions),
        samples_ns=tuple(tuple(row) for row in rows),
        summary=summarize([sample for row in rows for sample in row]),
        growth_ns=trend(by_position, np.asarray(positions, dtype=np.float64)).slope,
    )

"""The training loops: language model, question writer, reading stages; one process per GPU, or one on a CPU.

Every stage lasts a number of tokens, so that a run can be repeated; rates go up over the first steps, stay, and fall to
nothing over the last part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from desk_rag.training.reader.architecture import Decoder, rotary_tables
from desk_rag.training.reader.data.rows import COPY, ROW_FIELDS, attention_mask
from desk_rag.training.reader.optimiser import Optimiser


@dataclass(frozen=True, slots=True)
class Group:
    """The processes that train together."""

    rank: int
    size: int
    device: torch.device

    def log(self, *words: object) -> None:
        """Print once for all."""
        if self.rank == 0:
            print(f"[{time.strftime('%H:%M:%S')}]", *words, flush=True)


def join_group() -> Group:
    """Process group as torchrun set it up; a single process without it."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    if size > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(rank)
    return Group(rank, size, device)


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates and how they change."""

    muon: float
    adam: float
    fall: float
    """The last share of the steps, over which the rates fall to nothing."""
    warm_up: int = 60
    decay: float = 0.05

    def scale(self, done: float, step: int) -> float:
        """Factor at `done` of the whole (0 to 1)."""
        falling = 1.0 if done < 1 - self.fall else max(0.0, (1 - done) / self.fall)
        return falling * min(1.0, (step + 1) / self.warm_up)


def speed_up(model: Decoder) -> None:
    """Compile every block (one compilation serves them all); on a CPU nothing is done."""
    if next(model.parameters()).is_cuda:
        torch._dynamo.config.recompile_limit = 64
        for block in model.layers:
            block.compile()


# The language model ------------------------------------------------------------------------------------------


class TokenStream:
    """Windows of a token file, another order each epoch; about 256 of them, evenly spread, are held out.

    Documents go across windows, so the loss on those is a little lower than on text never seen.
    """

    def __init__(self, path: Path, window: int, group: Group) -> None:
        self._data = np.memmap(path, dtype=np.uint16, mode="r")
        total = (len(self._data) - 1) // window
        self._window, self._group = window, group
        self.held_out = list(range(0, total, max(1, total // 256)))[:256]
        held_out = set(self.held_out)
        self._all = np.array([i for i in range(total) if i not in held_out])
        self._rng = np.random.default_rng(1)
        self._order, self._at, self.epoch = self._rng.permutation(self._all), 0, 0

    def take(self, count: int) -> Tensor:
        """The next `count` windows of this process, [count, window + 1]."""
        if self._at + count * self._group.size > len(self._order):
            self._order, self._at = self._rng.permutation(self._all), 0
            self.epoch += 1
        start = self._at + self._group.rank * count
        self._at += count * self._group.size
        return self.windows(self._order[start : start + count])

    def windows(self, which: NDArray[np.int64] | list[int]) -> Tensor:
        size = self._window
        taken = np.stack([self._data[i * size : (i + 1) * size + 1].astype(np.int64) for i in which])
        return torch.from_numpy(taken).to(self._group.device, non_blocking=True)


def train_language_model(
    model: Decoder, stream: TokenStream, group: Group, rates: Rates, *, tokens: int, batch: int, micro: int, drop: float
) -> float:
    """Train for about `tokens` tokens in batches of `batch` windows; returns the held-out loss in nats a token."""
    window = stream.windows([0]).shape[1] - 1
    cos, sin = (table[:window] for table in rotary_tables(model.shape, group.device))
    model.train()
    model.set_dropout(drop)
    loss_of = compiled(_language_loss, group)
    steps = max(1, tokens // (batch * window))

    def gradients() -> Tensor:
        total = torch.zeros((), device=group.device)
        parts = max(1, batch // (micro * group.size))
        for _ in range(parts):
            ids = stream.take(micro)
            with half(group):
                hidden = model.hidden(ids[:, :-1], cos, sin)
                loss = loss_of(hidden, model.embed_tokens.weight, ids[:, 1:])
            torch.autograd.backward(loss / parts)
            total += loss.detach() / parts
        return total

    _run(model, gradients, group, rates, steps, f"language model, {tokens / 1e6:.0f} M tokens", batch * window)
    model.eval()
    losses = []
    with torch.no_grad(), half(group), torch.compiler.set_stance("force_eager"):
        for start in range(group.rank * 16, len(stream.held_out), 16 * group.size):
            ids = stream.windows(stream.held_out[start : start + 16])
            losses.append(_language_loss(model.hidden(ids[:, :-1], cos, sin), model.embed_tokens.weight, ids[:, 1:]))
    mean = torch.stack(losses).mean() if losses else torch.zeros((), device=group.device)
    if group.size > 1:
        dist.all_reduce(mean)
        mean /= group.size
    group.log(f"held-out loss {mean.item():.4f}, epochs {stream.epoch}")
    return mean.item()


def _language_loss(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(hidden, embedding.to(hidden.dtype)).float()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


# Rows --------------------------------------------------------------------------------------------------------


class Rows:
    """Rows of files PATTERN.ids.npy and so on, another order each epoch."""

    def __init__(self, folder: Path, name: str, group: Group, seed: int = 1) -> None:
        parts = sorted(folder.glob(f"{name}.*.ids.npy"))
        self._arrays = {
            field: np.concatenate([np.load(str(part).replace(".ids.", f".{field}.")) for part in parts])
            for field in ROW_FIELDS
        }
        self._group = group
        self.count = len(self._arrays["ids"])
        self._rng = np.random.default_rng(seed)
        self._order, self._at = self._rng.permutation(self.count), 0

    def take(self, count: int) -> dict[str, Tensor]:
        """The next `count` rows of this process."""
        if self._at + count * self._group.size > self.count:
            self._order, self._at = self._rng.permutation(self.count), 0
        start = self._at + self._group.rank * count
        self._at += count * self._group.size
        which = self._order[start : start + count]
        return {
            field: torch.from_numpy(values[which].astype(np.int64)).to(self._group.device, non_blocking=True)
            for field, values in self._arrays.items()
        }


def train_rows(
    model: Decoder,
    rows: Rows,
    group: Group,
    rates: Rates,
    *,
    count: int,
    batch: int,
    micro: int,
    drop: float,
    full_share: float,
    text_weight: float = 0.0,
    name: str = "reading",
) -> None:
    """Train on `count` rows; `full_share` of them with full attention, the rest as stitched inference sees them.

    With `text_weight` the chunks and questions of half the rows are learned too, as in the language-model stage: what
    was learned there would otherwise wear off.
    """
    cos, sin = rotary_tables(model.shape, group.device)
    model.train()
    model.set_dropout(drop)
    loss_of, text_loss_of = compiled(answer_loss, group), compiled(_text_loss, group)
    steps = max(1, count // batch)

    def gradients() -> Tensor:
        total = torch.zeros((), device=group.device)
        parts = max(1, batch // (micro * group.size))
        for _ in range(parts):
            taken = rows.take(micro)
            full = torch.rand(micro, device=group.device) < full_share
            with half(group):
                mask = attention_mask(taken["segments"], full, compute_dtype(group))
                hidden = row_states(model, taken, cos, sin, mask)
                loss = loss_of(*learned_of(hidden, taken), model.embed_tokens.weight)
                total += loss.detach() / parts
                if text_weight:
                    some = slice(0, max(1, micro // 2))
                    ids, segments = taken["ids"][some], taken["segments"][some]
                    text_loss = text_loss_of(hidden[some], ids, segments, model.embed_tokens.weight)
                    loss = loss + text_weight * text_loss
            torch.autograd.backward(loss / parts)
        return total

    length = rows.take(1)["ids"].shape[1]
    _run(model, gradients, group, rates, steps, f"{name}, {count} rows", batch * length)
    model.eval()


def row_states(model: Decoder, taken: dict[str, Tensor], cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
    """Last hidden states [B, T, width] of rows."""
    positions = taken["positions"]
    return model.hidden(taken["ids"], cos[positions][:, None], sin[positions][:, None], mask)


def learned_of(hidden: Tensor, taken: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states before each learned token [B, A, width], the tokens [B, A], and which are real [B, A]."""
    known = taken["learned"] > 0
    positions = taken["learned"].clamp(min=1)
    states = hidden.gather(1, (positions - 1)[:, :, None].expand(-1, -1, hidden.shape[-1]))
    return states, taken["ids"].gather(1, positions), known


def answer_loss(states: Tensor, targets: Tensor, weights: Tensor, embedding: Tensor) -> Tensor:
    """Mean loss in nats of the tokens `targets` [B, A] behind `states`, each counted by its weight [B, A]."""
    logits = F.linear(states, embedding.to(states.dtype)).float()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    return (loss * weights).sum() / weights.sum().clamp(min=1)


def _text_loss(hidden: Tensor, ids: Tensor, segments: Tensor, embedding: Tensor) -> Tensor:
    return answer_loss(hidden[:, :-1], ids[:, 1:], text_tokens(segments), embedding)


def text_tokens(segments: Tensor) -> Tensor:
    """[B, T - 1]: whether token 1.. is of a chunk or of a question with its answer, and follows one of its own."""
    own, before = segments[:, 1:], segments[:, :-1]
    return (own > 0) & (own < COPY) & (own == before)


# Common ------------------------------------------------------------------------------------------------------


def _run(
    model: Decoder,
    gradients: Callable[[], Tensor],
    group: Group,
    rates: Rates,
    steps: int,
    name: str,
    size: int,
) -> None:
    optimiser = Optimiser(model, muon=rates.muon, adam=rates.adam, decay=rates.decay)
    group.log(f"{name}: {steps} steps of {size} tokens")
    began, counted = time.perf_counter(), 0
    for step in range(steps):
        loss = gradients()
        optimiser.step(rates.scale(step / steps, step))
        if step == 3:  # compilation is over
            began, counted = time.perf_counter(), step
        if step % 100 == 99 or step in (3, steps - 1):
            value = float(loss)
            rate = (step - counted) * size / max(time.perf_counter() - began, 1e-9)
            group.log(f"{name}: step {step + 1}, loss {value:.3f}, {rate / 1e6:.2f} M tokens/s")


def compiled(function: Callable[..., Tensor], group: Group) -> Callable[..., Tensor]:
    """`function`, compiled on a GPU."""
    return torch.compile(function) if group.device.type == "cuda" else function


def half(group: Group) -> torch.autocast:
    """bf16 on a GPU, fp32 on a CPU."""
    return torch.autocast(group.device.type, torch.bfloat16, enabled=group.device.type == "cuda")


def compute_dtype(group: Group) -> torch.dtype:
    """Return the dtype that `half` computes in."""
    return torch.bfloat16 if group.device.type == "cuda" else torch.float32


def save(model: Decoder, path: Path) -> None:
    """Weights as fp32 safetensors, named as in Qwen3ForCausalLM without the leading 'model.'; all of it or nothing."""
    from safetensors.torch import save_file

    beside = path.with_suffix(".tmp")
    save_file({name: p.detach().float().cpu().contiguous() for name, p in model.state_dict().items()}, beside)
    beside.replace(path)


def load(model: Decoder, path: Path) -> None:
    """Load what `save` wrote."""
    from safetensors.torch import load_file

    model.load_state_dict(load_file(path))


def shards(count: int, group: Group) -> Iterator[int]:
    """The indices below `count` that are this process's."""
    return iter(range(group.rank, count, group.size))

"""Train the embedder by contrast: each question beside all passages of its batch, by vectors and by token vectors."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader
from transformers import BertModel

from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.training.embedder.rows import Batch, Batches, Texts

_WORKERS = 6
"""Processes that make batches for a GPU."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. Raises ConfigError for a value that makes none."""

    rate: float = 5e-5
    """The highest."""
    epochs: float = 12.0
    questions: int = 256
    """Per step."""
    versions: int = 4
    """Versions of each passage."""
    vector_scale: float = 20.0
    token_scale: float = 40.0
    """Factors of the cosines of vectors, and of the mean cosines of token vectors, before the softmax."""
    warm_up: int = 100
    """Steps until the rate is reached."""
    seed: int = 1
    seconds: float = math.inf
    """After which training ends, the rate having fallen to nothing by then."""

    def __post_init__(self) -> None:
        for name in ("questions", "versions", "warm_up"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)} is too small.", remedy="Take 1 at least.")
        for name in ("rate", "epochs", "seconds", "vector_scale", "token_scale"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)} gives no training.", remedy="Take more than 0.")


def encode(bert: BertModel, texts: Texts) -> tuple[Tensor, Tensor]:
    """Unit vectors of texts [texts, dim] and of their word pieces [texts, pieces, dim]."""
    tokens: Tensor = bert(input_ids=texts.ids, attention_mask=texts.mask.long()).last_hidden_state
    mask = texts.mask.unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * mask).sum(1) / mask.sum(1)
    return normalize(mean.float(), dim=1), normalize(tokens.float(), dim=2)


def token_similarities(questions: Tensor, asked: Texts, passages: Tensor, read: Texts) -> Tensor:
    """Late interaction [questions, passages]: the mean over a question's words of the largest cosine with signs.

    The gradient passes the signs as if they were the passages' unit vectors (straight-through estimator).
    """
    rounded = (2.0 * (passages > 0).to(passages.dtype) - 1.0) / passages.shape[-1] ** 0.5
    signs = (passages + (rounded - passages).detach()).to(torch.bfloat16 if passages.is_cuda else torch.float32)
    owner, piece = asked.words.nonzero(as_tuple=True)
    words = questions[owner, piece].to(signs.dtype)
    cosines = (words @ signs.flatten(0, 1).T).view(len(words), *read.words.shape)
    largest = cosines.masked_fill(~read.words, -1.0).amax(2).float()
    sums = largest.new_zeros(len(questions), len(passages)).index_add(0, owner, largest)
    means: Tensor = sums / asked.words.sum(1, keepdim=True).clamp(min=1)
    return means


def loss_of(bert: BertModel, batch: Batch, how: Settings) -> Tensor:
    """Cross entropy of the right passage among all, by vectors both ways and by token vectors."""
    question_vectors, question_tokens = encode(bert, batch.questions)
    passage_vectors, passage_tokens = encode(bert, batch.passages)
    count = len(question_vectors)
    gold = torch.arange(count, device=question_vectors.device)
    by_vector = (how.vector_scale * question_vectors @ passage_vectors.T).masked_fill(batch.excluded, -torch.inf)
    similar = token_similarities(question_tokens, batch.questions, passage_tokens, batch.passages)
    by_tokens = (how.token_scale * similar).masked_fill(batch.excluded, -torch.inf)
    backward = cross_entropy(by_vector[:, :count].T, gold)
    return cross_entropy(by_vector, gold) + 0.5 * backward + cross_entropy(by_tokens, gold)


def train(bert: BertModel, batches: Batches, how: Settings, say: Callable[[str], None]) -> None:
    """Train all weights but the word pieces' own where the network is, for `how.epochs` or `how.seconds`.

    Raises DeskRagError when the loss is no number any more.
    """
    device = bert.device
    gpu = device.type == "cuda"
    bert.embeddings.word_embeddings.requires_grad_(False)
    learning = [parameter for parameter in bert.parameters() if parameter.requires_grad]
    vectors = [parameter for parameter in learning if parameter.ndim < 2]
    matrices = [parameter for parameter in learning if parameter.ndim >= 2]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}], lr=how.rate
    )
    steps = max(1, round(how.epochs * math.ceil(batches.questions / how.questions)))
    loader = DataLoader(batches, batch_size=None, num_workers=_WORKERS if gpu else 0, pin_memory=gpu)
    bert.train()
    began, mean = time.perf_counter(), math.nan
    for step, batch in enumerate(itertools.islice(loader, steps)):
        done = max(step / steps, (time.perf_counter() - began) / how.seconds)
        if done >= 1:
            say(f"{how.seconds:.0f} s are over after {step} of {steps} steps")
            break
        for group in optimiser.param_groups:
            group["lr"] = how.rate * min(1.0, (step + 1) / how.warm_up, (1 - done) / 0.9)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=gpu):
            loss = loss_of(bert, batch.to(device), how)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        if step % 100 == 99 or step == steps - 1:
            value = loss.item()
            if not math.isfinite(value):
                raise DeskRagError(f"By step {step + 1} the loss is no number.", remedy="Take a lower --rate.")
            mean = value if math.isnan(mean) else 0.7 * mean + 0.3 * value
            say(f"step {step + 1} of {steps}, loss {mean:.3f}, {time.perf_counter() - began:.0f} s")
    bert.eval()

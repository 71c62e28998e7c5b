"""Passages nearest to each question by the embedder's vectors: what retrieval would bring beside the right one."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import BertModel

from desk_rag.training.embedder.rows import Packer, with_title
from desk_rag.training.embedder.training import encode
from desk_rag.training.pointer.material import Material

_BATCH = 256
_LOOKED_AT = 40


@torch.no_grad()
def with_vector_neighbours(of: Material, bert: BertModel, packer: Packer, most: int) -> Material:
    """The same material whose `near` also has, per question, the `most` nearest passages that do not say its answer."""
    texts = [with_title(versions[0], False) for versions in of.versions]
    passages = torch.cat([_vectors(bert, packer, texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)])
    near = []
    for number, versions in enumerate(of.versions):
        asked = versions[0].asked[: len(of.near[number])]
        if not asked:
            near.append(of.near[number])
            continue
        similar = _vectors(bert, packer, [one.ids for one in asked]) @ passages.T
        orders: list[list[int]] = similar.topk(min(_LOOKED_AT, len(texts)), dim=1).indices.tolist()
        near.append(
            tuple(
                (*known, *[other for other in order if other != number and not of.versions[other][0].says(one)][:most])
                for known, order, one in zip(of.near[number], orders, asked, strict=True)
            )
        )
    return replace(of, near=tuple(near))


def _vectors(bert: BertModel, packer: Packer, texts: list[tuple[int, ...]]) -> torch.Tensor:
    return encode(bert, packer.pack(texts).each(lambda tensor: tensor.to(bert.device)))[0]

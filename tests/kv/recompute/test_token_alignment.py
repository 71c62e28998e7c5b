"""Tokens of one tokenizer find those of another by the characters they stand for."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from desk_rag.kv.recompute.token_alignment import overlapping, token_spans
from desk_rag.model.prompt import load_prompt
from tests.models import byte_prompt

TEXT = "Zoë's café: rent 1,250 €.\nPaid — on Monday… <|im_end|> 雨の日 🌧 end."


def test_every_token_has_its_characters_and_the_frame_none(reader_dir: Path) -> None:
    for prompt in (load_prompt(reader_dir), byte_prompt()):
        ids, spans = prompt.chunk_ids(TEXT), token_spans(prompt, TEXT)
        assert len(spans) == len(ids)
        inner = [index for index, span in enumerate(spans) if span is not None]
        assert inner == list(range(inner[0], inner[-1] + 1)) and inner[0] > 0 and inner[-1] < len(ids) - 1
        covered = {at for span in spans if span is not None for at in range(*span)}
        assert {at for at, letter in enumerate(TEXT) if not letter.isspace()} <= covered


def test_a_word_is_found_across_tokenizers(reader_dir: Path) -> None:
    coarse, fine = token_spans(load_prompt(reader_dir), TEXT), token_spans(byte_prompt(), TEXT)
    for word in ("café", "1,250", "Monday", "雨", "🌧", "<|im_end|>"):
        start = TEXT.index(word)
        wanted = (start, start + len(word))
        letters = overlapping(fine, [wanted])
        assert len(letters) == len(word.encode())
        overlaps = overlapping(coarse, [fine[letter] for letter in letters])
        spans = [coarse[token] for token in overlaps]
        assert all(span is not None and span[0] < wanted[1] and span[1] > wanted[0] for span in spans)
        assert {at for span in spans if span is not None for at in range(*span)} >= set(range(*wanted))
        # Back again nothing is lost; the coarse tokens' other letters come with them.
        assert set(letters) <= set(overlapping(fine, spans))


def test_frames_and_empty_spans_match_nothing() -> None:
    assert overlapping([None, (0, 3), (3, 3), (3, 5), None], [None, (2, 2), (3, 4)]) == [3]
    assert overlapping([None, (0, 3), None], [None]) == []


@given(st.lists(st.integers(1, 4), max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_overlap_is_what_the_definition_says(one: list[int], other: list[int]) -> None:
    def spans(lengths: list[int]) -> list[tuple[int, int]]:
        return [(sum(lengths[:at]), sum(lengths[: at + 1])) for at in range(len(lengths))]

    ours, wanted = spans(one), spans(other)[::2]
    expected = [i for i, (a, b) in enumerate(ours) if any(a < d and c < b for c, d in wanted)]
    assert overlapping(ours, wanted) == expected

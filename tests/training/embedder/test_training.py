"""Training the embedder: what is compared, what stands in batches, and the command from questions to a folder."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from desk_rag.errors import ConfigError
from desk_rag.retrieval.embedding import RETRIEVAL_FILE, embedded_dir
from desk_rag.retrieval.retrieval_weights import retrieval_weights
from desk_rag.retrieval.token_vectors import pack_signs, similarities
from desk_rag.training.embedder.__main__ import main
from desk_rag.training.embedder.rows import LONGEST, Batches, Packer
from desk_rag.training.embedder.scoring import score
from desk_rag.training.embedder.training import Settings, encode, loss_of, token_similarities
from desk_rag.training.pointer.loading import load_bert
from desk_rag.training.pointer.material import material
from tests.training.pointer.test_training import shops, tiny, tokenizer, write

__all__ = ["tiny", "tokenizer"]  # fixtures


@pytest.fixture(scope="module")
def packer(tokenizer: Tokenizer) -> Packer:
    return Packer(tokenizer)


def pieces(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_late_interaction_in_training_is_that_of_the_product(tokenizer: Tokenizer, packer: Packer) -> None:
    bert, _ = load_bert(Path(embedded_dir()), 1)
    bert.eval()
    questions = packer.pack([pieces(tokenizer, text) for text in ("When is the rent due?", "Who mended the pipe")])
    texts = ("The rent is due on 1 May.", "Mr Voss repaired the pipe in the kitchen, 240.", "Nothing.")
    passages = packer.pack([pieces(tokenizer, text) for text in texts])
    with torch.no_grad():
        asked, read = encode(bert, questions)[1], encode(bert, passages)[1]
        trained = token_similarities(asked, questions, read, passages).numpy()
    signs = [pack_signs(read[one][passages.words[one]].numpy()) for one in range(3)]
    product = np.stack([similarities(asked[one][questions.words[one]].numpy(), signs) for one in range(2)])
    np.testing.assert_allclose(trained, product, atol=1e-5)
    assert trained[0].argmax() == 0 and trained[1].argmax() == 1


def test_what_may_answer_too_is_no_wrong_passage(tmp_path: Path, tokenizer: Tokenizer, packer: Packer) -> None:
    of = material([write(tmp_path / "data", shops(40))], tokenizer, versions=3)
    batches = Batches(of, packer, 8, seed=3)
    seen = 0
    for batch in islice(batches, 20):
        count = len(batch.questions.ids)
        assert len(batch.passages.ids) == 2 * count and batch.excluded.shape == (count, 2 * count)
        assert not batch.excluded[:, :count].any(), "each has one question in the batch"
        texts, asked = (
            [tokenizer.decode(row[mask].tolist()) for row, mask in zip(part.ids, part.mask, strict=True)]
            for part in (batch.passages, batch.questions)
        )
        for question, own in zip(asked, texts, strict=False):
            name = question.removeprefix("where does ").removesuffix(" sell?")
            assert name in own or any(word in own for word in question.rstrip("?").split() if word.isdigit())
        seen += int(batch.excluded.any())
    assert seen, "resembling passages that hold the answer occur, and are left out"


def test_long_texts_are_cut_and_only_words_are_compared(tokenizer: Tokenizer, packer: Packer) -> None:
    packed = packer.pack([[5000] * 900, pieces(tokenizer, "Yes, 7.")])
    assert packed.ids.shape == (2, LONGEST) and packed.mask[1].sum() == 6
    assert [tokenizer.id_to_token(one) for one in packed.ids[1][packed.words[1]].tolist()] == ["yes", "7"]


def test_the_loss_falls_when_the_right_passage_comes_nearer(tokenizer: Tokenizer, packer: Packer, tiny: Path) -> None:
    bert, _ = load_bert(tiny, 1)
    bert.eval()
    from desk_rag.training.embedder.rows import Batch

    texts = ["alpha shop", "beta mill", "gamma yard", "delta farm"]
    passages = packer.pack([pieces(tokenizer, text) for text in texts])
    right = packer.pack([pieces(tokenizer, text) for text in texts[:2]])
    wrong = packer.pack([pieces(tokenizer, text) for text in texts[1::-1]])
    excluded = torch.zeros(2, 4, dtype=torch.bool)
    with torch.no_grad():
        good, bad = (float(loss_of(bert, Batch(asked, passages, excluded), Settings())) for asked in (right, wrong))
    assert good < bad


@pytest.mark.slow
def test_the_command_writes_an_embedder_that_finds_more(
    tmp_path: Path, tokenizer: Tokenizer, packer: Packer, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = write(tmp_path / "data", shops(60)), tmp_path / "out"
    how = ["--questions", "16", "--epochs", "40", "--versions", "1", "--warm-up", "2", "--rate", "0.01"]
    assert main([str(out), str(data), "--start", str(tiny), *how]) == 0
    assert "held-out questions: first" in capsys.readouterr().out
    of = material([data], tokenizer, versions=1)
    before, after = (load_bert(tiny, 1)[0].eval() for _ in range(2))
    after.load_state_dict(retrieval_weights(before.state_dict(), out / RETRIEVAL_FILE))
    assert score(after, of, packer).among_five > score(before, of, packer).among_five
    assert [file.name for file in out.iterdir()] == [RETRIEVAL_FILE]


@pytest.mark.parametrize("value", [{"rate": 0.0}, {"questions": 0}, {"token_scale": -1.0}, {"seconds": 0.0}])
def test_settings_that_train_nothing_are_refused(value: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(value))):
        Settings(**value)  # type: ignore[arg-type]


def test_a_folder_without_questions_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "out"), str(tmp_path)]) == 2
    assert "has no qa_train*" in capsys.readouterr().err

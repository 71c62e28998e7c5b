"""Embedding: the real all-MiniLM-L6-v2, its weights checked, long chunks in windows, the errors a user can meet."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, ModelError, ModelNotFound
from desk_rag.model.checkpoint import row_int8
from desk_rag.retrieval import embedding, fingerprint
from desk_rag.retrieval.embedded_module import WordPieces
from desk_rag.retrieval.embedding import (
    EMBEDDED_NAME,
    EMBEDDED_SHA256,
    RETRIEVAL_FILE,
    Embedder,
    QuestionCache,
    check_weights,
    embedded_dir,
    load_embedder,
)
from desk_rag.retrieval.retrieval_weights import retrieval_weights
from desk_rag.retrieval.token_vectors import QuestionEncoding

NOTE = "The plumber Denny Quarles comes on Thursday and needs the key of the boiler room, which sits in box 14."
OTHER = "Chlorophyll absorbs red and blue light and reflects green."


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    yield load_embedder(ModelSettings(device="cpu"))


def library_module() -> SentenceTransformer:
    """The same model as sentence-transformers loads it; it reads the int8 codes without their scales."""
    module = SentenceTransformer(
        str(embedded_dir()),
        device="cpu",
        local_files_only=True,
        model_kwargs={"use_safetensors": True, "add_pooling_layer": False},
    )
    module[0].auto_model.load_state_dict(row_int8.read(embedded_dir() / "model.safetensors"))
    return module.eval()


@pytest.fixture(scope="module")
def library() -> Embedder:
    return Embedder("library", library_module(), is_embedded=False)


@pytest.fixture(scope="module")
def found_by() -> Embedder:
    """The weights that find passages, as sentence-transformers computes with them."""
    module = library_module()
    weights = row_int8.read(embedded_dir() / "model.safetensors")
    module[0].auto_model.load_state_dict(retrieval_weights(weights, embedded_dir() / RETRIEVAL_FILE))
    return Embedder("for retrieval", module.eval(), is_embedded=False)


def exact(library: Embedder, text: str) -> np.ndarray:
    """A question's vector by matrices that are not packed."""
    return np.asarray(library._embed([text], None, nullcontext(), library._module, tokens=False)[0][0])


def encode(library: Embedder, text: str) -> np.ndarray:
    """Embed a text with sentence-transformers itself."""
    assert isinstance(library._module, SentenceTransformer)
    return np.asarray(library._module.encode([text], normalize_embeddings=True, show_progress_bar=False)[0])


def test_the_embedder_that_ships_computes_what_the_library_computes_bit_for_bit(
    embedder: Embedder, library: Embedder, found_by: Embedder, sample_docs: Path
) -> None:
    assert embedder.fingerprint == found_by.fingerprint != library.fingerprint, "vectors of existing stores stay valid"
    texts = [file.read_text()[:3000] for file in sorted(sample_docs.rglob("*.md"))[:6]]
    texts += [
        "",
        "x",
        NOTE * 30,
        "\u6771\u4eac" * 300,
        "Na\u00efve caf\u00e9s\r\n\x00 3.10 \u20ac",
        "\u00e9t\u00e9 [SEP] [MASK]",
    ]
    assert np.array_equal(embedder.embed_chunks(texts), library.embed_chunks(texts))
    assert np.array_equal(embedder.encode_chunks(texts).vectors, found_by.embed_chunks(texts))
    for text in texts:  # questions by matrices in int8 or fp16, which round by themselves
        assert np.abs(embedder.embed_question(text[:300]) - exact(library, text[:300])).max() < 2e-4
        # coded from the changed weights, which are not stored as int8
        assert float(embedder.encode_question(text[:300]).vector @ exact(found_by, text[:300])) > 0.999


def test_changes_for_retrieval_belong_to_the_embedder(tmp_path: Path) -> None:
    weights = row_int8.read(embedded_dir() / "model.safetensors")
    changed = retrieval_weights(weights, embedded_dir() / RETRIEVAL_FILE)
    words = "embeddings.word_embeddings.weight"
    assert changed.keys() == weights.keys() and changed[words] is weights[words]
    others = [name for name in weights if name != words]
    assert others and all(not torch.equal(changed[name], weights[name]) for name in others)
    matrix = next(name for name in others if weights[name].dim() == 2)
    for name, change in (("no.such.weight", torch.zeros(3)), (matrix, torch.zeros(3))):
        save_file({f"{name}.change": change.half()}, tmp_path / "changes.safetensors")
        with pytest.raises(RuntimeError, match="changes.safetensors changes"):
            retrieval_weights(weights, tmp_path / "changes.safetensors")


def test_the_embedder_that_ships_needs_no_sentence_transformers() -> None:
    program = (
        "import sys; from desk_rag.config import ModelSettings\n"
        "from desk_rag.retrieval.embedding import load_embedder\n"
        "load_embedder(ModelSettings(device='cpu')).embed_question('Where is it?')\n"
        "print(*(name in sys.modules for name in ('sentence_transformers', 'peft', 'bitsandbytes', 'sklearn')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"] * 4


def test_matrices_for_passages_are_packed_when_a_passage_comes(embedder: Embedder) -> None:
    fresh = load_embedder(ModelSettings(device="cpu"))
    fresh.encode_question("Where is the key?")
    assert fresh.retrieval is not None and "_chunk_module" not in vars(fresh) | vars(fresh.retrieval)
    passage = fresh.encode_chunks(["The key is under the mat."]).vectors
    assert "_chunk_module" in vars(fresh.retrieval) and "_chunk_module" not in vars(fresh)
    assert np.array_equal(passage, embedder.encode_chunks(["The key is under the mat."]).vectors)


def test_a_question_has_the_vector_that_sentence_transformers_gives_it(embedder: Embedder, library: Embedder) -> None:
    vector = embedder.embed_question("Where is the key that the plumber needs?")
    assert vector.dtype == np.float32 and vector.shape == (embedder.dim,) == (384,)
    expected = encode(library, "Where is the key that the plumber needs?")
    # Matrices packed as fp16 for questions: what is compared with chunks moves by less than any rank depends on.
    assert np.abs(vector - expected).max() < 3e-4
    assert vector @ expected > 0.999999


def test_chunks_are_unit_vectors_close_to_full_precision_and_in_order(embedder: Embedder, library: Embedder) -> None:
    texts = [NOTE, OTHER, "", NOTE * 3, "14"]
    vectors = embedder.embed_chunks(texts)
    assert vectors.shape == (5, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        assert float(vector @ encode(library, text)) > 0.998


def test_a_vector_depends_on_its_text_alone(embedder: Embedder) -> None:
    """So an index that grew file by file ranks as one that was made at once, also where bf16 rounds."""
    texts = [f"The boiler of house {number} was serviced. " * (1 + number % 5) for number in range(7)]
    together, alone = embedder.encode_chunks(texts), [embedder.encode_chunks([text]) for text in texts]
    assert np.array_equal(together.vectors, np.concatenate([one.vectors for one in alone]))
    assert together.signs is not None
    for signs, one in zip(together.signs, alone, strict=True):
        assert one.signs is not None and np.array_equal(signs, one.signs[0])


def test_meaning_decides(embedder: Embedder) -> None:
    question = embedder.embed_question("Which box holds the boiler key?")
    note, other = embedder.embed_chunks([NOTE, OTHER])
    assert float(question @ note) > 0.4 > float(question @ other)


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    assert embedder.embed_chunks([]).shape == (0, 384)


def test_the_end_of_a_long_chunk_counts(embedder: Embedder, library: Embedder) -> None:
    long = (OTHER + " ") * 30  # more than 300 word pieces
    plain, ending = embedder.embed_chunks([long, long + NOTE])
    question = embedder.embed_question("Which box holds the boiler key?")
    assert float(question @ ending) > float(question @ plain) + 0.05
    # The library alone cuts both to the same 256 word pieces.
    assert np.allclose(encode(library, long), encode(library, long + NOTE), atol=1e-5)


def test_windows_cover_the_text_once_between_words_and_fit_the_limit(embedder: Embedder, library: Embedder) -> None:
    for text in [(NOTE + "\n") * 40, "\u6771\u4eac" * 500, "\u00e9t\u00e9 " * 400]:
        windows = list(embedder._windows(0, text, None))
        assert len(windows) > 1 and "".join(window.text for window in windows) == text
        counts = [len(library._module.tokenizer(window.text)["input_ids"]) for window in windows]
        assert max(counts) <= 256
        if " " in text:
            assert all(window.text[0].isspace() for window in windows[1:])
            assert max(counts) - min(counts) < 40


def test_a_long_chunk_is_the_weighted_mean_of_its_windows(embedder: Embedder, library: Embedder) -> None:
    text = (NOTE + " ") * 12 + OTHER
    windows = list(embedder._windows(0, text, None))
    mean = sum(window.weight * encode(library, window.text) for window in windows)
    expected = mean / np.linalg.norm(mean)
    assert float(embedder.embed_chunks([text])[0] @ expected) > 0.998


def test_fingerprint_is_of_weights_and_rule(
    embedder: Embedder, found_by: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:

    assert embedder.fingerprint == Embedder("another name", found_by._module, is_embedded=False).fingerprint
    weight = next(found_by._module.parameters())
    with torch.no_grad():
        weight[0, 0] += 1
    try:
        assert Embedder("same name", found_by._module, is_embedded=True).fingerprint != embedder.fingerprint
    finally:
        with torch.no_grad():
            weight[0, 0] -= 1
    monkeypatch.setattr(fingerprint, "WINDOW_RULE", "another rule")
    assert Embedder("same name", found_by._module, is_embedded=True).fingerprint != embedder.fingerprint


def test_threads_share_one_embedder(embedder: Embedder) -> None:
    expected = embedder.embed_question(NOTE)
    failures: list[object] = []

    def ask(number: int) -> None:
        try:
            for turn in range(6):
                # Other lengths each time, so that padding and truncation of the tokenizer really change.
                embedder.embed_chunks([NOTE * (turn % 3 + 1), OTHER[: 10 + number]])
                if np.abs(embedder.embed_question(NOTE) - expected).max() > 1e-5:
                    failures.append("another vector")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_folder_with_the_same_model_gives_the_same_vectors(
    embedder: Embedder, library: Embedder, tmp_path: Path
) -> None:
    library._module.save(str(tmp_path / "mine"))
    other = load_embedder(ModelSettings(device="cpu", embedder=str(tmp_path / "mine")))
    assert other.name == str(tmp_path / "mine")
    np.testing.assert_allclose(other.embed_question(NOTE), embedder.embed_question(NOTE), atol=2e-4)  # fp16 and int8


def test_the_embedded_one_is_told_by_its_weights_and_not_by_its_name(
    embedder: Embedder, library: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the very name, from where it stands: its weights were not checked, and they are others."""
    assert embedder.name == EMBEDDED_NAME and embedder.is_embedded
    library._module.save(str(tmp_path / EMBEDDED_NAME))
    file = tmp_path / EMBEDDED_NAME / "model.safetensors"
    weights = load_file(file)
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, file, metadata={"format": "pt"})
    monkeypatch.chdir(tmp_path)
    other = load_embedder(ModelSettings(device="cpu", embedder=EMBEDDED_NAME))
    assert other.name == EMBEDDED_NAME and other.fingerprint != embedder.fingerprint
    assert not other.is_embedded


def test_the_shipped_weights_are_codes_times_scales_and_nothing_is_left_to_chance(embedder: Embedder) -> None:
    stored = load_file(embedded_dir() / "model.safetensors")
    loaded = embedder.transformer()[0].state_dict()
    assert set(loaded) == {name for name in stored if not name.endswith(".scale")}
    for name, weight in loaded.items():
        scale = stored.get(f"{name}.scale", torch.ones(1)).float()
        assert torch.equal(weight, stored[name].float() * scale), name
    matrix = "encoder.layer.0.attention.self.query.weight"
    assert stored[matrix].dtype == torch.int8 and loaded[matrix].abs().max() < 2


@pytest.mark.parametrize("way", ["encode_question", "embed_question"])
def test_for_one_answer_a_question_is_embedded_once(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def vector(one: QuestionCache | Embedder, text: str) -> np.ndarray:
        made = getattr(one, way)(text)
        return np.asarray(made.vector if isinstance(made, QuestionEncoding) else made)

    questions: list[str] = []
    real = getattr(embedder, way)
    expected = {text: vector(embedder, text) for text in (NOTE, OTHER)}
    monkeypatch.setattr(embedder, way, lambda text: (questions.append(text), real(text))[1])
    one = QuestionCache(embedder)
    assert (one.is_embedded, one.fingerprint) == (True, embedder.fingerprint)
    assert all(np.array_equal(vector(one, NOTE), expected[NOTE]) for _ in range(2)) and questions == [NOTE]
    assert not np.array_equal(vector(one, OTHER), vector(one, NOTE)) and questions == [NOTE, OTHER]
    assert np.array_equal(one.embed_chunks([NOTE]), embedder.embed_chunks([NOTE]))
    vector(QuestionCache(embedder), NOTE)  # the next answer's
    assert questions == [NOTE, OTHER, NOTE]


def test_prompts_of_a_model_are_used(embedder: Embedder, library: Embedder) -> None:
    module = library._module
    before = dict(module.prompts)
    try:
        module.prompts = {"query": "query: ", "passage": "passage: "}
        prompted = Embedder("prompted", module, is_embedded=False)
        assert np.abs(prompted.embed_question(NOTE) - encode(library, "query: " + NOTE)).max() < 3e-4
        assert float(prompted.embed_chunks([NOTE])[0] @ encode(library, "passage: " + NOTE)) > 0.9999
        assert prompted.fingerprint != embedder.fingerprint
    finally:
        module.prompts = before


@pytest.mark.parametrize("name", ["no-such-org/no-such-model", "/no/such/folder", "./nothing", "a/b/c"])
def test_a_missing_embedder_is_a_clear_error_without_network(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        load_embedder(ModelSettings(device="cpu", embedder=name))
    assert name.removeprefix("./") in caught.value.message and "embedded" in str(caught.value)


def test_a_folder_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=str(tmp_path)):
        load_embedder(ModelSettings(device="cpu", embedder=str(tmp_path)))


def test_a_folder_with_broken_weights_is_a_clear_error(embedder: Embedder, library: Embedder, tmp_path: Path) -> None:
    library._module.save(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not a safetensors")
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_embedder(ModelSettings(device="cpu", embedder=str(tmp_path)))


def test_other_weights_under_the_embedded_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with pytest.raises(ModelNotFound, match="cannot be read"):
        check_weights(file, EMBEDDED_SHA256, "Reinstall it.")
    file.write_bytes(b"something else")
    with pytest.raises(ModelNotFound, match="not the expected ones") as caught:
        check_weights(file, EMBEDDED_SHA256, "Reinstall it.")
    assert caught.value.remedy == "Reinstall it."


@pytest.mark.gpu
def test_a_gpu_gives_the_same_vectors(embedder: Embedder) -> None:
    on_gpu = load_embedder(ModelSettings(device="cuda"))
    texts = ["The rent is due on 1 May.", "Bees, in closed hives, travel on the foredeck."]
    here, there = embedder.encode_chunks(texts), on_gpu.encode_chunks(texts)
    assert float((here.vectors * there.vectors).sum(1).min()) > 0.999
    question = "When do we pay for the flat?"
    assert float(embedder.encode_question(question).vector @ on_gpu.encode_question(question).vector) > 0.999
    assert on_gpu.fingerprint == embedder.fingerprint
    assert here.signs is not None and there.signs is not None
    assert [one.shape for one in here.signs] == [one.shape for one in there.signs]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an NVIDIA GPU")
def test_a_demanded_gpu_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="NVIDIA"):
        load_embedder(ModelSettings(device="cuda"))


def test_kernels_that_a_cpu_does_not_have_are_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # peft brings bitsandbytes in, which warns of them when it is first imported.
    above, logger = logging.getLogger("bitsandbytes"), logging.getLogger("bitsandbytes.backends.cpu.ops")
    monkeypatch.setattr(above, "level", logging.NOTSET)
    above.manager._clear_cache()  # type: ignore[attr-defined]
    assert logger.isEnabledFor(logging.WARNING)
    with embedding._quiet():
        assert not logger.isEnabledFor(logging.WARNING)
    assert logger.isEnabledFor(logging.WARNING)


def test_loading_says_nothing_and_leaves_no_trace_in_logging(capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging as transformers_logging

    level = logging.getLogger("sentence_transformers").level
    bars = transformers_logging.is_progress_bar_enabled()
    load_embedder(ModelSettings(device="cpu"))
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("sentence_transformers").level == level
    assert transformers_logging.is_progress_bar_enabled() == bars


@pytest.mark.parametrize("words", [0, 1, 253, 254, 255, 700])
def test_long_texts_are_cut_and_short_ones_filled_up_as_the_tokenizers_library_does(words: int) -> None:
    file = embedded_dir() / "tokenizer.json"
    library = Tokenizer.from_file(str(file))
    library.enable_truncation(256)
    library.enable_padding()
    texts = [NOTE, "key " * words, "Stra\u00dfe \u6771\u4eac"]
    inputs = WordPieces(file, 256).batch(texts)
    expected = library.encode_batch(texts)
    assert inputs["input_ids"].tolist() == [row.ids for row in expected]
    assert inputs["token_type_ids"].tolist() == [row.type_ids for row in expected]
    assert inputs["attention_mask"].tolist() == [row.attention_mask for row in expected]

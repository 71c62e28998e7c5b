"""Every data set becomes the same kind of sample, the same one each time; bad files say where they are bad."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from desk_rag.bench.answer_quality.data.datasets import Form, load_needles, load_samples, splitter
from desk_rag.bench.answer_quality.data.distractors import Drawing, Order, WordIndex
from desk_rag.bench.answer_quality.data.niah import VARIANTS
from desk_rag.bench.answer_quality.data.sample import Sample
from desk_rag.errors import ConfigError
from desk_rag.model.prompt import load_prompt


class Words:
    """Counts words."""

    def count(self, text: str) -> int:
        return len(text.split())


COUNTER = Words()


def write(file: Path, lines: Sequence[object]) -> Path:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    file.write_bytes(lzma.compress(text.encode()) if file.suffix == ".xz" else text.encode())
    return file


def load(form: Form, file: Path, drawing: Drawing | None = None) -> list[Sample]:
    return load_samples(form, file, drawing or Drawing(), COUNTER, 20)


WRITTEN = [
    {"passage": f"The {thing} stands in room {n}. It is {hue}.", "title": f"Of {thing}s", "source": "desk",
     "question": f"Where is the {thing}?", "answer": f"room {n}", "answers": [f"room {n}", f"in room {n}"]}
    for n, (thing, hue) in enumerate([("piano", "black"), ("drum", "red"), ("harp", "gold"), ("lute", "brown"),
                                      ("bell", "green"), ("horn", "dented")])
]  # fmt: skip


@pytest.mark.parametrize("name", ["written.jsonl", "written.jsonl.xz"])
def test_written_questions(tmp_path: Path, name: str) -> None:
    samples = load(Form.OWN, write(tmp_path / name, WRITTEN), Drawing(chunks=4))
    assert len(samples) == 6
    for sample, row in zip(samples, WRITTEN, strict=True):
        assert sample.task == "written"
        assert len(set(sample.contexts)) == 4
        assert sample.gold is not None and len(sample.gold) == 1
        assert sample.contexts[sample.gold[0]] == f"{row['title']}\n{row['passage']}"
        assert sample.answers == (tuple(row["answers"]),)
        assert sum(str(row["answer"]) in text for text in sample.contexts) == 1
    assert len({sample.gold for sample in samples}) > 1


def test_the_seed_decides_and_the_limit_draws(tmp_path: Path) -> None:
    file = write(tmp_path / "w.jsonl", WRITTEN)
    drawing = Drawing(chunks=3, limit=3)
    once, again, other = (load(Form.OWN, file, d) for d in (drawing, drawing, replace(drawing, seed=6)))
    assert once == again
    assert once != other
    assert len(once) == 3
    everything = load(Form.OWN, file, replace(drawing, limit=0))
    assert all(sample in everything for sample in once)


def test_near_distractors_share_words_and_gold_may_be_laid_last(tmp_path: Path) -> None:
    lines = [*WRITTEN, {**WRITTEN[0], "passage": "A toy piano: where is it kept?", "title": "Toys"}]
    drawing = Drawing(chunks=2, near=True, order=Order.GOLD_LAST)
    first = load(Form.OWN, write(tmp_path / "w.jsonl", lines), drawing)[0]
    toys, pianos = "Toys\nA toy piano: where is it kept?", "Of pianos\nThe piano stands in room 0. It is black."
    assert first.contexts == (toys, pianos)
    assert first.gold == (1,)


def test_word_index_prefers_rare_words() -> None:
    index = WordIndex(["the cat sat", "the dog sat", "the the the sat"])
    assert index.nearest("the dog", 1, lambda text: False) == ["the dog sat"]
    assert index.nearest("the dog", 3, lambda text: "dog" in text)[0] != "the dog sat"


def test_passages_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    lines = [*WRITTEN, {**WRITTEN[0], "passage": "word " * 50}]
    file = write(tmp_path / "w.jsonl", lines)
    kept = load(Form.OWN, file, Drawing(longest=20))
    assert len(kept) == 6
    assert not any("word word" in text for sample in kept for text in sample.contexts)


def test_unanswerable_questions_and_questions_over_several_texts(tmp_path: Path) -> None:
    lines = [{key: row[key] for key in ("passage", "title", "question")} for row in WRITTEN]
    for sample in load(Form.OWN, write(tmp_path / "none.jsonl", lines), Drawing(chunks=3)):
        assert (sample.answers, sample.gold, sample.answerable) == ((), (), False)
        assert len(sample.contexts) == 3
    several = [
        {"texts": [f"Key {n} is blue.", f"Blue opens door {n}.", "Nothing."], "qas": [[f"Key {n}?", f"door {n}"]],
         "evidence": [[f"Key {n} is blue.", f"Blue opens door {n}."]]}
        for n in range(3)
    ]  # fmt: skip
    sample = load(Form.OWN, write(tmp_path / "multi.jsonl", several), Drawing(chunks=5))[1]
    assert len(sample.contexts) == 5
    assert sample.gold is not None
    assert {sample.contexts[i] for i in sample.gold} == {"Key 1 is blue.", "Blue opens door 1."}


def test_samples_survive_their_own_form(tmp_path: Path) -> None:
    samples = [
        Sample("q?", (("a", "b"),), ("a is so", "c"), "one", (0,), ("a is so",), ("z",)),
        Sample("r?", (("a",), ("b",)), ("x",), "two"),
        Sample("s?", (), ("x",), "two", ()),
    ]
    file = write(tmp_path / "s.jsonl", [sample.to_json() for sample in samples])
    assert load(Form.OWN, file) == samples
    assert len({sample.digest for sample in samples}) == 3


RGB = [
    {"id": n, "query": f"Who won in {n}?", "answer": [f"Ann {n}", [f"Bo {n}", f"Bob {n}"]],
     "positive": [f"Ann {n} and Bo {n} won ({k})." for k in range(6)],
     "negative": [f"Rain in {n} ({k})." for k in range(9)]}
    for n in range(3)
]  # fmt: skip


def test_rgb_noise_and_rejection(tmp_path: Path) -> None:
    file = write(tmp_path / "en.json", RGB)
    samples = load(Form.RGB, file, Drawing(chunks=5, noise=(0.2, 0.5, 1.0)))
    assert [sample.task for sample in samples] == ["rgb-noise-0.2"] * 3 + ["rgb-noise-0.5"] * 3 + ["rgb-rejection"] * 3
    for sample, helping in zip(samples, [4] * 3 + [2] * 3 + [0] * 3, strict=True):  # 0.5 of 5 is 3 chunks of noise
        assert sum("won" in text for text in sample.contexts) == helping
        assert len(sample.contexts) == 5
        assert sample.gold == tuple(i for i, text in enumerate(sample.contexts) if "won" in text)
        assert sample.answers == (() if helping == 0 else ((sample.answers[0][0],), sample.answers[1]))
    assert samples[0].answers == (("Ann 0",), ("Bo 0", "Bob 0"))


def test_rgb_integration_takes_of_every_group_and_counterfactual_the_changed(tmp_path: Path) -> None:
    row = {"query": "A and B?", "answer": ["1", "2"], "positive": [["A1", "A2", "A3"], ["B1"]], "negative": ["n"] * 9}
    (sample,) = load(Form.RGB, write(tmp_path / "en_int.json", [row]), Drawing(chunks=4, noise=(0.75,)))
    assert sample.task == "rgb-integration-0.75"
    assert sorted(text[0] for text in sample.contexts) == ["A", "B", "n", "n"]
    assert sample.answers == (("1",), ("2",))
    fact = {"query": "Where?", "answer": "Tampa", "fakeanswer": "Glendale", "positive": ["in Tampa"],
            "positive_wrong": ["in Glendale"], "negative": ["rain", "sun"]}  # fmt: skip
    (sample,) = load(Form.RGB, write(tmp_path / "en_fact.json", [fact]), Drawing(chunks=2, noise=(0.4,)))
    assert set(sample.contexts) == {"in Glendale", "rain"}
    assert (sample.task, sample.answers, sample.wrong) == ("rgb-counterfactual-0.4", (("Tampa",),), ("Glendale",))


def test_longbench(tmp_path: Path) -> None:
    passages = "Passage 1:\nOne thing. " + "It goes on and on. " * 10 + "\n\nPassage 2:\nAnother thing here."
    row = {"input": "What?", "context": passages, "answers": ["a", "b"], "length": 9, "dataset": "hotpotqa"}
    (sample,) = load(Form.LONGBENCH, write(tmp_path / "hotpotqa.jsonl", [row]))
    assert (sample.task, sample.question, sample.answers) == ("longbench-hotpotqa", "What?", (("a", "b"),))
    assert sample.contexts[-1] == "Another thing here."
    assert len(sample.contexts) > 2
    assert all(COUNTER.count(text) <= 30 for text in sample.contexts)
    assert " ".join(sample.contexts[:-1]).split() == passages.split("\n\n")[0].split()[2:]
    prompt = "Passage:\nThe sky is blue.\nQuestion:\nWhat hue?\nAnswer:"
    trivia = {"input": prompt, "context": "Solved one.", "answers": ["blue"]}
    (sample,) = load(Form.LONGBENCH, write(tmp_path / "triviaqa.jsonl", [trivia]))
    assert (sample.question, sample.contexts, sample.gold) == ("What hue?", ("Solved one.", "The sky is blue."), (1,))


def test_the_splitter_loses_nothing() -> None:
    text = "A first sentence stands here. A second one follows it closely. " * 20
    chunks = splitter(COUNTER, 30)(text)
    assert " ".join(chunks).split() == text.split()
    assert len(chunks) > 5


def test_squad(tmp_path: Path) -> None:
    def paragraph(n: int) -> dict[str, object]:
        answers = [{"text": f"a{n}", "answer_start": 0}, {"text": f"b{n}", "answer_start": 3}]
        nothing = {"question": f"N{n}?", "answers": [], "is_impossible": True}
        return {"context": f"a{n} or b{n}.", "qas": [{"question": f"Q{n}?", "answers": answers}, nothing]}

    file = tmp_path / "dev.json"
    file.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": [paragraph(1), paragraph(2)]}]}))
    samples = load(Form.SQUAD, file, Drawing(chunks=2))
    assert [sample.question for sample in samples] == ["Q1?", "N1?", "Q2?", "N2?"]
    assert samples[0].answers == (("a1", "b1"),)
    assert set(samples[0].contexts) == {"a1 or b1.", "a2 or b2."}
    assert (samples[1].answers, samples[1].gold) == ((), ())


@pytest.mark.parametrize(
    ("form", "content", "complaint"),
    [
        (Form.OWN, '{"question": "q", "answers": ["a"], "contexts": ["c"]}\n{"question": ', "line 2"),
        (Form.OWN, '\n{"question": "q", "answers": ["a"], "contexts": ["c"], "gold": [4]}', "line 2: 'gold'"),
        (Form.OWN, '{"question": "q", "answers": ["a"], "contexts": []}', "line 1: 'contexts' is empty"),
        (Form.OWN, '{"question": "q", "contexts": ["c"]}', "line 1: 'answers' is missing"),
        (Form.OWN, '{"passage": "p", "title": "t"}', "line 1: 'question' is missing"),
        (Form.OWN, '{"texts": ["p"], "qas": [["q"]]}', "line 1: 'qas' holds"),
        (Form.OWN, "[1]", "line 1: no JSON object"),
        (Form.OWN, "", "holds no data"),
        (Form.RGB, '{"query": "q", "answer": "a"}', "line 1: 'positive' is missing"),
        (Form.LONGBENCH, '{"input": "q", "context": ""}', "line 1: 'context' is empty"),
        (Form.SQUAD, '{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q"}]}]}]}', "after 0 questions"),
        (Form.SQUAD, "{", "line 1"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path: Path, form: Form, content: str, complaint: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"bad.jsonl.*{re.escape(complaint)}"):
        load(form, file)


def test_broken_xz_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.xz").write_bytes(b"not xz")
    with pytest.raises(ConfigError, match="x.jsonl.xz cannot be read"):
        load(Form.OWN, tmp_path / "x.jsonl.xz")


@pytest.mark.parametrize("name", list(VARIANTS))
def test_needles(name: str, reader_dir: Path) -> None:
    prompt = load_prompt(reader_dir)
    samples = load_needles([name], 600, 3, 5, prompt, 150)
    assert samples == load_needles([name], 600, 3, 5, prompt, 150)
    assert samples != load_needles([name], 600, 3, 6, prompt, 150)
    variant = VARIANTS[name]
    for sample in samples:
        assert sum(prompt.count(text) for text in sample.contexts) == pytest.approx(600, abs=100)
        assert all(prompt.count(text) <= 155 for text in sample.contexts)
        assert sample.task == f"niah-{name}"
        assert len(sample.answers) == variant.num_asked * variant.num_values
        joined = "\n".join(sample.contexts)
        needles = re.findall(r"The secret \w+ of (\S+) is (\S+)\.", joined)
        assert len(needles) >= variant.num_keys * variant.num_values
        pairs = [(key, value) for key, value in needles if key in sample.question]
        assert sorted(value for _, value in pairs) == sorted(part[0] for part in sample.answers)
        assert sample.gold == tuple(
            i for i, text in enumerate(sample.contexts) if any(f"of {k} is {v}." in text for k, v in pairs)
        )


def test_needles_lie_at_all_depths_and_unknown_ones_are_refused(reader_dir: Path) -> None:
    prompt = load_prompt(reader_dir)
    golds = {sample.gold for sample in load_needles(["single_1"], 600, 20, 5, prompt, 150)}
    assert len(golds) >= 4
    with pytest.raises(ConfigError, match="no needle task 'single_9'"):
        load_needles(["single_9"], 600, 1, 5, prompt, 150)


def test_essays_come_from_a_file(tmp_path: Path) -> None:
    essay = tmp_path / "essay.txt"
    essay.write_text("Herons stand on one leg at dusk. Nobody has ever asked them for a reason!\n\n# No sentence")
    (sample,) = load_needles(["single_2"], 200, 1, 5, COUNTER, 50, essay)
    assert "Herons stand on one leg at dusk." in sample.contexts[0]
    assert "No sentence" not in " ".join(sample.contexts)
    essay.write_text("nothing")
    with pytest.raises(ConfigError, match="holds no sentences"):
        load_needles(["single_2"], 200, 1, 5, COUNTER, 50, essay)

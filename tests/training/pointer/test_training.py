"""Training the pointer: the loss, what stands in batches, the score, and the command from written questions to a file
that is read again."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import BertConfig, BertModel

from desk_rag.answering.evidence.deeper import head_of, load_deeper, weights_of
from desk_rag.answering.evidence.span_model import MOST_PIECES, SpanBatch, SpanModel, apply_adapter
from desk_rag.answering.evidence.span_scorer import load_span_scorer
from desk_rag.assets import assets_dir
from desk_rag.config import ModelSettings
from desk_rag.errors import ConfigError, DeskRagError
from desk_rag.retrieval.embedding import embedded_dir, load_embedder
from desk_rag.training.pointer.__main__ import main
from desk_rag.training.pointer.loading import load_start
from desk_rag.training.pointer.material import Asked, Material, Version, material, occurrences
from desk_rag.training.pointer.rows import Batch, Batches
from desk_rag.training.pointer.scoring import score
from desk_rag.training.pointer.training import Settings, loss_of, train
from desk_rag.training.reader.data.written import Pair, Passage, load_passages

KEEPERS = ("Aldous", "Beatrix", "Cuthbert", "Dorothea", "Edmund", "Felicity", "Gideon", "Harriet", "Ignatius")
GOODS = ("candles", "barley", "leather", "pewter", "saffron", "timber", "vinegar", "walnuts", "copper")


def shops(count: int) -> list[Passage]:
    """Invented passages, each with two questions whose answers stand in no other; every third does not answer one."""
    passages = []
    for number in range(count):
        keeper, goods = KEEPERS[number % 9] + "son" * (number // 9), GOODS[(number + number // 9) % 9]
        text = f"In this town {keeper} sells {goods} in street {210 + number}.\nThe shop of {keeper} is small."
        pairs = (
            Pair(f"Who sells in street {210 + number}?", keeper),
            Pair(f"Where does {keeper} sell?", f"street {210 + number}"),
        )
        absent = (f"When was {keeper} born?",) if number % 3 == 2 else ()
        passages.append(Passage(f"shop-{number}.txt", text, True, pairs, absent))
    return passages


def write(folder: Path, passages: Sequence[Passage]) -> Path:
    """The files of written questions."""
    folder.mkdir(parents=True, exist_ok=True)
    asked, absent = [], []
    for passage in passages:
        row = {"passage": passage.text, "title": passage.title, "source": "desk"}
        asked += [json.dumps(row | asdict(pair)) for pair in passage.pairs]
        absent += [json.dumps(row | {"question": question}) for question in passage.unanswerable]
    (folder / "qa_train.jsonl").write_text("\n".join(asked) + "\n", encoding="utf-8")
    (folder / "unanswerable_train.jsonl").write_text("\n".join(absent) + "\n" * bool(absent), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(f"{embedded_dir()}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@pytest.fixture(scope="module")
def real() -> list[Passage]:
    """The shortest 30 passages that ship and are asked much or have no answer, and the longest."""
    passages = sorted(load_passages(assets_dir() / "training", "train"), key=lambda passage: len(passage.text))
    assert any(not passage.pairs for passage in passages)
    answered = [passage for passage in passages if len(passage.pairs) >= 6]
    return [*answered[:28], *(passage for passage in passages if not passage.pairs)][:30] + passages[-1:]


@pytest.fixture(scope="module")
def of(real: list[Passage], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material([write(tmp_path_factory.mktemp("real"), real)], tokenizer, versions=3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of one narrow layer over the embedder's word pieces, as a folder."""
    folder = tmp_path_factory.mktemp("tiny-bert")
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    torch.manual_seed(5)
    save_file(BertModel(config, add_pooling_layer=False).state_dict(), folder / "model.safetensors")
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(Path(embedded_dir(), "tokenizer.json").read_bytes())
    return folder


def shop_material(tmp_path: Path, tokenizer: Tokenizer, passages: Sequence[Passage], versions: int = 1) -> Material:
    return material([write(tmp_path / "shops", passages)], tokenizer, versions)


# The loss


def naive_loss(scores: Tensor, batch: Batch) -> Tensor:
    """Question by question over lists of finite scores, in fp64."""
    gold = {tuple(each) for each in batch.gold.tolist()}
    losses = []
    for question in range(len(scores) // batch.chunks):
        every, right = [scores.new_zeros(())], []
        for row in range(question * batch.chunks, (question + 1) * batch.chunks):
            for first, last in torch.isfinite(scores[row]).nonzero().tolist():
                every.append(scores[row, first, last])
                right += [scores[row, first, last]] * ((row, first, last) in gold)
        whole = torch.stack(every).exp().sum()
        losses.append(-((torch.stack(right).exp().sum() if right else 1) / whole).log())
    return torch.stack(losses).mean()


def scored(gold: list[tuple[int, int, int]], rows: int, chunks: int) -> tuple[Tensor, Tensor, Batch]:
    """Scores before spans that are none are masked, the mask, and a batch of which only `gold` counts."""
    torch.manual_seed(2)
    mask = ~torch.ones(rows, 6, 6, dtype=torch.bool).triu()
    empty = torch.zeros(rows, 6, dtype=torch.int64)
    places = torch.tensor(gold, dtype=torch.int64).view(-1, 3)
    return torch.randn(rows, 6, 6), mask, Batch(SpanBatch(empty, empty, empty.bool(), empty.bool()), places, chunks)


@pytest.mark.parametrize(
    ("gold", "chunks"),
    [([(0, 1, 2), (2, 0, 5)], 2), ([(0, 1, 2), (0, 4, 4), (1, 3, 5), (5, 0, 0)], 3), ([(3, 2, 2)], 1), ([], 2)],
    ids=["one each", "several, two in other chunks", "one chunk per question", "none"],
)
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_the_loss_and_its_gradient_are_those_of_the_plain_sum(
    gold: list[tuple[int, int, int]], chunks: int, scale: float
) -> None:
    scores, mask, batch = scored(gold, 6, chunks)
    mask[4] = True  # a chunk without any span
    mine, naive = (scores * scale).requires_grad_(), (scores * scale).double().requires_grad_()
    loss = loss_of(mine.masked_fill(mask, -torch.inf), batch)
    wanted = naive_loss(naive.masked_fill(mask, -torch.inf), batch)
    torch.autograd.backward([loss, wanted])
    assert mine.grad is not None and naive.grad is not None
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5) and loss.item() > 0
    assert bool(mine.grad.abs().sum() > 0)
    torch.testing.assert_close(mine.grad, naive.grad.float(), atol=1e-6, rtol=1e-4)


def test_scores_that_no_exponential_holds_give_a_finite_loss() -> None:
    scores, mask, batch = scored([(0, 1, 2)], 2, 1)
    scores = (scores - 500.0).masked_fill(mask, -torch.inf)
    scores[1, 0, 0] = 400.0
    # question 0: the only right span at about -500 against 0 of 'none'; question 1: 'none' against 400
    assert float(loss_of(scores, batch)) == pytest.approx((-float(scores[0, 1, 2]) + 400.0) / 2, rel=1e-5)


# What there is to learn from


def test_every_version_says_its_answers_where_its_spans_are(of: Material, tokenizer: Tokenizer) -> None:
    changed = exact = 0
    for versions in of.versions:
        assert len({len(version.asked) for version in versions}) == 1
        changed += len({version.text for version in versions}) > 1
        for version in versions:
            offsets = tokenizer.encode(version.text, add_special_tokens=False).offsets
            for asked in version.asked:
                assert asked.answer in version.text and bool(asked.spans) == bool(asked.answer)
                for first, last in asked.spans:
                    said = version.text[offsets[first][0] : offsets[last][1]]
                    assert asked.answer.strip() in said
                    exact += said == asked.answer
    assert changed > 15 and exact > 400
    held_out = sorted(of.held)
    assert held_out == [0, 20] and [len(each) for each in of.near] == [
        sum(bool(asked.answer) for asked in versions[0].asked) for versions in of.versions
    ]


def test_answers_are_found_as_whole_words_or_else_once_and_in_few_pieces(tokenizer: Tokenizer) -> None:
    def said(text: str, answer: str, line: str = "") -> list[str]:
        offsets = tokenizer.encode(text, add_special_tokens=False).offsets
        return [text[offsets[i][0] : offsets[j][1]] for i, j in occurrences(text, Pair("", answer, line), offsets)]

    table = "oats: 4 cups\nbuckwheat: 4 cups\nwheat: 4 cups\nrye: 4 cups"
    offsets = tokenizer.encode(table, add_special_tokens=False).offsets
    (place,) = occurrences(table, Pair("How much wheat?", "4 cups", "wheat: 4 cups"), offsets)
    assert offsets[place[0]][0] == table.index("4 cups\nrye") and len(said(table, "4 cups")) == 4

    assert said("The art of Art, artful art.", "art") == ["art", "art"]
    assert said("Start.", "tar") == ["Start"] and said("Gate 14, room 14b.", "14") == ["14"]
    assert said("Nothing.", "else") == []
    words = "wood " * MOST_PIECES
    assert said(words + "end", words.strip()) == [words.strip()] and said(words + "end", words + "end") == []


@pytest.mark.parametrize("line", ["nowhere: 4 cups", "Nell"])
def test_a_line_that_is_none_of_the_passage_is_told(tmp_path: Path, tokenizer: Tokenizer, line: str) -> None:
    passages = shops(6)
    wrong = replace(passages[2].pairs[0], line=line)
    assert wrong.answer not in line
    passages[2] = replace(passages[2], text=f"{passages[2].text} Nell", pairs=(wrong, *passages[2].pairs[1:]))
    with pytest.raises(ConfigError, match="has a `line`"):
        shop_material(tmp_path, tokenizer, passages)


def test_a_passage_of_two_folders_is_one_with_the_questions_of_both(tmp_path: Path, tokenizer: Tokenizer) -> None:
    passages = shops(9)
    more = replace(passages[0], pairs=(Pair("What is sold?", "candles"), passages[0].pairs[0]))
    one = write(tmp_path / "one", passages)
    both = material([one, write(tmp_path / "other", [more])], tokenizer, versions=1)
    assert [versions[0].text for versions in both.versions] == [passage.text for passage in passages]
    assert [asked.answer for asked in both.versions[0][0].asked] == ["Aldous", "street 210", "candles"]
    assert material([one, one], tokenizer, 2) == material([one], tokenizer, 2) != material([one], tokenizer, 2, seed=2)


def test_a_passage_whose_answers_would_be_lost_keeps_its_names_and_numbers(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    passages = shops(8)
    changed = replace(passages[2], text=passages[2].text + " Box 7351946.", pairs=(Pair("Which middle?", "5194"),))
    of = shop_material(tmp_path, tokenizer, [*passages[:2], changed, *passages[3:]], versions=6)
    assert {version.text for version in of.versions[2]} == {changed.text}
    assert all(len({version.text for version in of.versions[number]}) > 1 for number in (1, 3))


# Batches


def questions_of(batch: Batch, of: Material, tokenizer: Tokenizer) -> Iterator[list[tuple[Asked | None, int, Version]]]:
    """Per question its rows: what is asked if the chunk is its own passage, the chunk's number, the chunk."""
    known = {version.ids: (n, version) for n, versions in enumerate(of.versions) for version in versions}
    known |= {version.title + version.ids: (n, version) for n, vs in enumerate(of.versions) for version in vs}
    rows = []
    for number in range(len(batch.rows.ids)):
        line = batch.rows.ids[number][batch.rows.known[number]].tolist()
        end = line.index(tokenizer.token_to_id("[SEP]"))
        assert line[0] == tokenizer.token_to_id("[CLS]") and line[-1] == line[end]
        assert batch.rows.kinds[number].tolist() == [0] * (end + 1) + [1] * (len(line) - end - 1) + [0] * int(
            (~batch.rows.known[number]).sum()
        )
        assert batch.rows.inside[number].nonzero().flatten().tolist() == list(range(end + 1, len(line) - 1))
        chunk, version = known[tuple(line[end + 1 : -1])]
        matching = [asked for asked in version.asked if list(asked.ids) == line[1:end]]
        rows.append((matching[0] if matching else None, chunk, version))
    for first in range(0, len(rows), batch.chunks):
        yield rows[first : first + batch.chunks]


def test_batches_hold_questions_with_their_passage_and_others_that_do_not_answer(
    of: Material, tokenizer: Tokenizer
) -> None:
    batches = Batches(of, tokenizer, questions=8, chunks=3, seed=1)
    kinds: Counter[str] = Counter()
    for batch in islice(batches, 60):
        rows, shape = len(batch.rows.ids), batch.rows.ids.shape
        assert rows % 3 == 0 and shape == batch.rows.kinds.shape == batch.rows.known.shape == batch.rows.inside.shape
        assert shape[1] % 32 == 0 and shape[1] <= 448 and batch.gold.shape[1] == 3
        golden = {row: (first, last) for row, first, last in batch.gold.tolist()}
        for number, question in enumerate(questions_of(batch, of, tokenizer)):
            asked, own, _ = question[0]
            assert not {chunk for _, chunk, _ in question} & of.held
            assert not golden.keys() & {number * 3 + 1, number * 3 + 2}
            assert asked is None or all(chunk != own for _, chunk, _ in question[1:])
            kinds["without" if asked is None else "answered" if asked.answer else "unanswered"] += 1
            if asked is None or not asked.answer:
                assert number * 3 not in golden
                continue
            first, last = golden[number * 3]
            said = tokenizer.decode(batch.rows.ids[number * 3, first : last + 1].tolist(), skip_special_tokens=False)
            plain = tokenizer.decode(tokenizer.encode(asked.answer, add_special_tokens=False).ids, False)
            assert said == plain or plain.replace(" ", "") in said.replace(" ", ""), (said, plain)
            assert not any(version.says(asked) for _, _, version in question[1:])
    total = sum(kinds.values())
    assert kinds["answered"] > 300 and kinds["unanswered"] > 10
    assert 0.02 < kinds["without"] / total < 0.12


def test_a_passage_that_says_the_answer_in_text_or_title_is_no_other_to_it(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    passages = shops(8)
    answer = passages[3].pairs[0].answer
    passages[4] = replace(passages[4], text=passages[4].text + f" So is that of\n{answer.upper()}.")
    passages[5] = replace(passages[5], title=f"{answer}'s neighbour.txt")
    of = shop_material(tmp_path, tokenizer, passages)
    beside: Counter[int] = Counter()
    for batch in islice(Batches(of, tokenizer, 4, 3, seed=3), 150):
        for question in questions_of(batch, of, tokenizer):
            asked, own, _ = question[0]
            if own == 3 and asked is not None and asked.answer == answer:
                beside.update(chunk for _, chunk, _ in question[1:])
    assert set(beside) == {1, 2, 6, 7}


def test_most_other_passages_are_like_the_question(of: Material, tokenizer: Tokenizer) -> None:
    free = [number for number in range(len(of.versions)) if number not in of.held]
    near = tuple(
        tuple((free[(number + pair) % len(free)],) for pair in range(len(each))) for number, each in enumerate(of.near)
    )
    of, beside = replace(of, near=near), Counter[bool]()
    for batch in islice(Batches(of, tokenizer, 8, 4, seed=1), 25):
        for question in questions_of(batch, of, tokenizer):
            asked, own, version = question[0]
            if asked is not None and asked.answer:
                (like,) = near[own][version.asked.index(asked)]
                if like != own and not any(one.says(asked) for one in of.versions[like]):
                    beside.update(chunk == like for _, chunk, _ in question[1:])
    assert 0.5 < beside[True] / sum(beside.values()) < 0.75 and sum(beside.values()) > 200


def test_what_a_row_cannot_show_is_not_asked(tmp_path: Path, tokenizer: Tokenizer) -> None:
    passages = shops(8)
    first, second = passages[3].pairs
    filling = " There is much to see here." * 80
    long_answer = " ".join(f"{word} and" for word in GOODS * 3)
    passages[3] = replace(
        passages[3], text=f"Of {long_answer} much.{filling} {passages[3].text}",
        pairs=(first, second, Pair("What is there much of?", long_answer), Pair("There is what?", "much to see")),
    )  # fmt: skip
    of = shop_material(tmp_path, tokenizer, passages)
    assert [bool(asked.spans) for asked in of.versions[3][0].asked] == [True, True, False, True]
    batches = Batches(of, tokenizer, 4, 2, seed=1)
    assert batches.questions == 6 * 2 + 2 + 1  # two of six passages, two that are unanswerable, one of the long passage
    asked_of = Counter(
        tokenizer.decode(row[1 : row.tolist().index(102)].tolist()) for b in islice(batches, 40) for row in b.rows.ids
    )
    assert asked_of["there is what?"] > 10
    assert not {"what is there much of?", first.question.lower(), second.question.lower()} & set(asked_of)
    changed = replace(of, held=frozenset({3}))
    assert score(Rigged(changed), changed, batches).questions == 1


def test_an_answer_that_only_the_title_pushes_out_is_asked_without_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    passages = shops(8)
    text = "In town " + "so " * 420 + passages[3].text
    passages[3] = replace(passages[3], text=text, title="a very long title " * 9, pairs=passages[3].pairs[:1])
    of = shop_material(tmp_path, tokenizer, passages)
    cut, question = 0, passages[3].pairs[0].question.lower()
    for batch in islice(Batches(of, tokenizer, 4, 2, seed=1), 100):
        golden = set(batch.gold[:, 0].tolist())
        for row, line in enumerate(batch.rows.ids.tolist()):
            own = line.count(tokenizer.token_to_id("so")) > 200
            if own and tokenizer.decode(line[1 : line.index(102)]) == question:
                cut += 1
                assert row in golden
    assert cut > 5


def test_the_same_seed_gives_the_same_batches_every_time(of: Material, tokenizer: Tokenizer) -> None:
    batches = Batches(of, tokenizer, 8, 2, seed=4)
    runs = [list(islice(one, 50)) for one in (batches, batches, Batches(of, tokenizer, 8, 2, seed=4))]
    for one, other in zip(runs[0] * 2, runs[1] + runs[2], strict=True):
        assert torch.equal(one.rows.ids, other.rows.ids) and torch.equal(one.gold, other.gold)
    assert not torch.equal(runs[0][0].rows.ids, next(iter(Batches(of, tokenizer, 8, 2, seed=5))).rows.ids)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_question_comes_once_before_any_comes_again(tmp_path: Path, tokenizer: Tokenizer, workers: int) -> None:
    passages = [replace(passage, unanswerable=()) for passage in shops(17)]
    of = shop_material(tmp_path, tokenizer, passages)
    batches = Batches(of, tokenizer, 1, 2, seed=1)
    assert batches.questions == 32  # two pools of 16 batches: with two processes one each
    epochs = list(islice(DataLoader(batches, batch_size=None, num_workers=workers), 64))
    for epoch in (epochs[:32], epochs[32:]):
        first = [batch.rows.ids[0].tolist() for batch in epoch]
        assert len({tuple(line[: line.index(102)]) for line in first}) == 32


# Scoring


class Rigged(SpanModel):
    """Knows the answers of the held passages, or points at the first word of the second chunk."""

    def __init__(self, of: Material, wrong: bool = False) -> None:
        config = BertConfig(vocab_size=2, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        super().__init__(BertModel(config, add_pooling_layer=False))
        versions = [of.versions[number][0] for number in of.held]
        self.spans = {(*asked.ids, 102, *version.ids): asked.spans for version in versions for asked in version.asked}
        self.wrong = wrong
        self.seen: list[Tensor] = []

    def forward(self, rows: SpanBatch) -> Tensor:
        self.seen += list(rows.ids)
        scores = torch.full((*rows.ids.shape, rows.ids.shape[1]), -1.0)
        for row, line in enumerate(rows.ids):
            first = int(rows.inside[row].nonzero()[0])
            for span in self.spans.get(tuple(line[rows.known[row]].tolist()[1:-1]), ()):
                scores[row, first + span[0], first + span[1]] = 2.0
            if self.wrong and row == 1:
                scores[row, first, first] = 3.0
        return scores


def test_the_score_tells_right_from_wrong_and_silent(of: Material, tokenizer: Tokenizer) -> None:
    batches = Batches(of, tokenizer, 8, 2, seed=1)
    of = replace(of, held=of.held | {number for number, near in enumerate(of.near) if not near})
    pairs = [pair for number in of.held for pair in of.versions[number][0].asked]
    right, wrong = score(Rigged(of), of, batches), score(Rigged(of, wrong=True), of, batches)
    assert right.questions == wrong.questions == sum(bool(one.answer) for one in pairs) > 10
    assert (right.span, right.passage, right.none, right.silent) == (1, 1, 1, 0)
    assert (wrong.span, wrong.passage, wrong.none, wrong.silent) == (0, 0, 0, 0)
    assert "span 100.0, passage 100.0, none 100.0, silent 0.0" in str(right)
    mute = Rigged(of)
    mute.spans.clear()
    assert score(mute, of, batches).silent == 1


def test_held_questions_are_asked_among_passages_that_do_not_answer_them(tmp_path: Path, tokenizer: Tokenizer) -> None:
    passages = shops(7)
    keeper, _ = passages[0].pairs
    passages[1] = replace(passages[1], text=f"{passages[1].text} Aldous sells there.")
    of = shop_material(tmp_path, tokenizer, passages)
    net = Rigged(of)
    assert score(net, of, Batches(of, tokenizer, 8, 2, seed=1)).span == 1
    read = [tokenizer.decode(line.tolist()) for line in net.seen]
    assert 1 in of.near[0][1] and len(read) == 10
    assert [keeper.question.lower() in line for line in read] == [True] * 5 + [False] * 5
    assert ["aldous sells there" in line for line in read].count(True) == 1
    assert not any("aldous sells there" in line for line in read[:5])


def test_an_untrained_net_is_seldom_right_and_scored_the_same_twice(
    of: Material, tokenizer: Tokenizer, tiny: Path
) -> None:
    net, _ = load_start(tiny, seed=1)
    net.train()  # dropout would give other shares the second time
    batches = Batches(of, tokenizer, 8, 2, seed=1)
    one, two = score(net, of, batches), score(net, of, batches)
    assert one == two and one.span < 0.5


# The command


def run(out: Path, *arguments: object) -> int:
    return main([str(out), *map(str, arguments)])


@pytest.mark.slow
def test_the_command_trains_what_the_pointer_then_loads(
    real: list[Passage], tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [beginning(passage) for passage in real if len(beginning(passage).pairs) == 2][:6]
    data, out = write(tmp_path / "data", few), tmp_path / "made" / "pointer"
    how = ("--questions", 3, "--chunks", 2, "--versions", 2, "--epochs", 3, "--warm-up", 1)
    assert run(out, data, *how) == 0
    output = capsys.readouterr()
    assert "6 passages" in output.out and "1 passages held out" in output.out
    assert "held-out questions: span" in output.out
    assert output.err == "" and "LOAD REPORT" not in output.out
    trained, shipped = (load_file(folder / "pointer.safetensors") for folder in (out, assets_dir() / "pointer"))
    form = {name: (tensor.shape, tensor.dtype) for name, tensor in shipped.items()}
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in trained.items()} == form
    assert [file.name for file in out.iterdir()] == ["pointer.safetensors"]
    before, _ = load_start(Path(embedded_dir()), seed=1)
    after, _ = load_start(Path(embedded_dir()), seed=1)
    apply_adapter(after, trained)
    of = material([data], tokenizer, 2)
    batches = list(islice(Batches(of, tokenizer, 3, 2, seed=9), 2))
    losses = []
    for net in (before.eval(), after.eval()):
        with torch.no_grad():
            losses.append([float(loss_of(net(b.rows), b)) for b in batches])
    assert all(late < early - 0.5 for early, late in zip(*losses, strict=True)), losses
    embedder = load_embedder(ModelSettings(device="cpu"))
    pointer = load_span_scorer(embedder, out)
    text = few[1].text
    (field,) = pointer.read(few[1].pairs[0].question, [text])
    with embedder.autocast():
        expected = _best(after, tokenizer, few[1])
    # the row is filled up there and not here, and bf16, where a CPU has it, rounds other sums
    assert field.best(0, len(text), 1)[0].score == pytest.approx(expected, abs=0.05)


def beginning(passage: Passage) -> Passage:
    """Its first lines and the first two questions that these answer, for a slow machine."""
    text = passage.text[:200]
    return replace(passage, text=text, pairs=tuple(p for p in passage.pairs if p.answer in text)[:2], unanswerable=())


def _best(net: SpanModel, tokenizer: Tokenizer, passage: Passage) -> float:
    """The best span of the first question, by the rows of training."""
    from desk_rag.training.pointer.rows import Row

    ids = tuple(tokenizer.encode(passage.text, add_special_tokens=False).ids)
    question = Asked(tuple(tokenizer.encode(passage.pairs[0].question, add_special_tokens=False).ids), "", ())
    row = Row(question, Version(passage.text, "", (), ids, (question,)), False, True)
    plenty = Material(tuple(((row.chunk,),) * 3), ((), (), ()), frozenset())
    batch = Batches(plenty, tokenizer, 1, 1, 1).batch([row], 1)
    with torch.no_grad():
        return float(net(batch.rows).max())


def test_the_same_seed_makes_the_same_file(tiny: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "data", shops(9))
    how = (data, "--start", tiny, "--questions", 4, "--epochs", 1, "--rank", 2, "--warm-up", 1, "--versions", 2)
    assert [run(tmp_path / name, *how, "--seed", seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))] == [0, 0, 0]
    one, same, other = ((tmp_path / name / "pointer.safetensors").read_bytes() for name in "abc")
    assert one == same != other


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny`, of two layers as wide as a group of columns."""
    folder = tmp_path_factory.mktemp("grouped-bert")
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=1, intermediate_size=64)
    torch.manual_seed(5)
    save_file(BertModel(config, add_pooling_layer=False).state_dict(), folder / "model.safetensors")
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(Path(embedded_dir(), "tokenizer.json").read_bytes())
    return folder


def test_rank_0_trains_every_weight_but_the_words_and_a_deeper_pointer_reads_them(
    grouped: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    passages = shops(9)
    data, out = write(tmp_path / "data", passages), tmp_path / "out"
    how = ("--start", grouped, "--rank", 0, "--rate", 1e-2, "--questions", 4, "--epochs", 1, "--warm-up", 1)
    assert run(out, data, *how) == 0
    assert sorted(file.name for file in out.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    before, _ = load_start(grouped, 1)
    net, _ = load_start(grouped, 1)
    weights = weights_of(load_file(out / "model.safetensors"))
    net.bert.load_state_dict(weights)
    for name, tensor in before.bert.state_dict().items():
        assert not torch.equal(weights[name], tensor), name  # rounded, and all but the words learned
    words = "embeddings.word_embeddings.weight"
    error = (weights[words] - before.bert.state_dict()[words]).square().mean()
    assert error < 0.02 * before.bert.state_dict()[words].square().mean()
    net.head.load_state_dict(head_of(load_file(out / "model.safetensors")))
    deeper = load_deeper(load_embedder(ModelSettings(device="cpu")), out)
    (field,) = deeper.read(passages[1].pairs[0].question, [passages[1].text])
    expected = _best(net.eval(), tokenizer, passages[1])
    assert field.best(0, len(passages[1].text), 1)[0].score == pytest.approx(expected, abs=0.01)


def test_a_start_whose_width_is_no_whole_groups_is_told(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "data", shops(6))
    assert run(tmp_path / "out", data, "--start", tiny, "--rank", 0) == ConfigError.exit_code
    assert "32" in capsys.readouterr().err and not list((tmp_path / "out").iterdir())


def test_less_than_a_batch_is_a_step_per_epoch_and_the_clock_ends_it(
    tiny: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    of = shop_material(tmp_path, tokenizer, shops(6))
    batches = Batches(of, tokenizer, 64, 2, seed=1)
    lines: list[str] = []
    train(load_start(tiny, 1)[0], batches, batches.questions, Settings(rank=2, epochs=3), lines.append)
    assert len(lines) == 2 and lines[1].startswith("step 3 of 3, loss ")
    net, _ = load_start(tiny, 1)
    train(net, batches, batches.questions, Settings(rank=2, epochs=3, seconds=1e-9), lines.append)
    assert lines[3] == "0 s are over after 0 of 3 steps" and len(lines) == 4 and not net.training


class Slow(IterableDataset[Batch]):
    """The first batch at once, the second late."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield batch
            time.sleep(0.6)


def test_a_rate_that_leads_nowhere_is_told(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "data", shops(6))
    with pytest.raises(DeskRagError, match="--rate"):
        of = material([data], load_start(tiny, 1)[1], 1)
        batches = Batches(of, load_start(tiny, 1)[1], 4, 2, seed=1)
        how = Settings(rank=2, rate=1e9, warm_up=1, seconds=0.5, epochs=50)
        train(load_start(tiny, 1)[0], Slow(batches), 8, how, lambda _: None)
    assert run(tmp_path / "out", data, "--start", tiny, "--rate", 1e9, "--warm-up", 1, "--rank", 2) == 1
    assert "lower --rate" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_questions_that_every_passage_answers_cannot_be_asked(tmp_path: Path, tokenizer: Tokenizer) -> None:
    passages = [replace(one, pairs=(Pair("Where?", "this town"),), unanswerable=()) for one in shops(6)]
    with pytest.raises(ConfigError, match="No question of the data can be asked") as raised:
        Batches(shop_material(tmp_path, tokenizer, passages), tokenizer, 4, 2, seed=1)
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("data", "words"),
    [("nowhere", "nowhere is not there"), ("empty", "empty has no qa_train"), ("few", "4 passages are too few"),
     ("broken", "broken cannot be read: JSONDecodeError"), ("lacking", "lacking cannot be read: KeyError: 'question'")],
)  # fmt: skip
def test_data_that_cannot_be_used_is_named(
    tiny: Path, tmp_path: Path, data: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "few", shops(4))
    for name, line in (("broken", '{"passage": '), ("lacking", '{"passage": "a"}')):
        (write(tmp_path / name, shops(6)) / "qa_train-2.jsonl").write_text(line + "\n", encoding="utf-8")
    assert run(tmp_path / "out", tmp_path / data, "--start", tiny) == ConfigError.exit_code
    message, remedy = capsys.readouterr().err.split("\n  ")
    assert words in message and str(tmp_path) in message and remedy.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--rank", -1), "rank = -1"), (("--chunks", -1), "chunks = -1"), (("--rate", "nan"), "rate = nan"),
     (("--epochs", "inf"), "finite"), (("--seconds", 0), "seconds = 0.0"), (("--warm-up", 0), "warm_up = 0")],
)  # fmt: skip
def test_settings_that_train_nothing_are_refused(
    tmp_path: Path, arguments: tuple[object, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "out", tmp_path, *arguments) == ConfigError.exit_code
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [("none", "There is no config.json"), ("reader", "is not that of a BERT"), ("weights", "cannot be read"),
     ("lacks", "has no encoder.layer.0"), ("wider", "different shapes"), ("tokenizer", "json cannot be read")],
)  # fmt: skip
def test_a_folder_that_is_no_embedder_is_named(
    tiny: Path, tmp_path: Path, change: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for file in tiny.iterdir() if change != "none" else ():
        (start / file.name).write_bytes(file.read_bytes())
    weights = load_file(tiny / "model.safetensors")
    if change == "reader":
        (start / "config.json").write_bytes((assets_dir() / "reader" / "config.json").read_bytes())
    elif change == "weights":
        (start / "model.safetensors").write_bytes(b"nothing")
    elif change == "lacks":
        save_file({k: v for k, v in weights.items() if "query.bias" not in k}, start / "model.safetensors")
    elif change == "wider":
        config = json.loads((start / "config.json").read_text(encoding="utf-8"))
        (start / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}), encoding="utf-8")
    elif change == "tokenizer":
        (start / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert run(tmp_path / "out", tmp_path, "--start", start) == 5
    told_words = capsys.readouterr().err
    assert words in told_words and str(start) in told_words and "leave --start out" in told_words


def test_a_file_is_no_folder_for_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("", encoding="utf-8")
    assert run(tmp_path / "out", tmp_path) == ConfigError.exit_code
    assert "out is no folder" in capsys.readouterr().err

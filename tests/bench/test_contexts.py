"""`bench contexts` on the CPU, small: real files, the real loader, every mode; what is timed is right first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from desk_rag.bench import contexts
from desk_rag.bench.baselines.serving import TheirFiles
from desk_rag.bench.gpu_paths import whole_answer
from desk_rag.bench.gpu_paths.first_token import Case, CaseWorks, Desk, Mode, Plans
from desk_rag.bench.gpu_paths.whole_answer import Answering, Job
from desk_rag.bench.models import shapes
from desk_rag.bench.models.chunk_pool import ChunkPool
from desk_rag.errors import ConfigError
from desk_rag.kv import payload
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.loading.loader import LoaderSettings
from desk_rag.kv.payload import ChunkFile
from desk_rag.kv.positions import plan
from desk_rag.kv.rope import build_tables
from desk_rag.kv.stitch import stitch
from desk_rag.kv.types import QuantizedKV
from desk_rag.model.language_model import LanguageModel
from desk_rag.store.kv import header as kv_header

CPU = torch.device("cpu")
SEVERAL = {Mode.FULL_BATCH.value, Mode.RAM_IN_TURN.value, Mode.VRAM_IN_TURN.value}
"""Ways that several questions have and one has not."""
SETTINGS = LoaderSettings(threads=2, waves=2, staging_bytes=1 << 20, resident_bytes=1 << 22)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """Its attention is peaked, so that a wrong position is seen; the random one's is nearly uniform."""
    model = shapes.build("tiny", CPU)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "norm" not in name:
                parameter.mul_(12.0 if any(part in name for part in ("q_proj", "k_proj")) else 6.0)
    return model


@pytest.fixture
def works(model: LanguageModel, tmp_path: Path) -> Iterator[CaseWorks]:
    plans = Plans(
        "tiny", (Case(150, 9, 1), Case(150, 9, 2)), 64, tmp_path, SETTINGS, graphs=False, big_bytes=1 << 24,
        most_bytes=1 << 30, baselines=True,
    )  # fmt: skip
    pool = ChunkPool(tmp_path, shapes.model_shape("tiny").chunk_shape)
    with Desk(plans, model, shapes.random_prefix(model, 12), pool) as desk:
        yield CaseWorks(desk, desk.cases[1])


def stored(file: ChunkFile) -> QuantizedKV:
    """The file's content, read without the loader."""
    header = kv_header.read_header(file.path)
    content = torch.from_numpy(np.fromfile(file.path, dtype=np.uint8))
    return payload.as_quantized(header, content[header.data_start :])


def stitched_logits(works: CaseWorks, question: int, *, shift: int = 0) -> torch.Tensor:
    """From the same files, by plain stitching and the model's own forward pass."""
    desk = works.desk
    chunks = [stored(file) for file in works.files[question]]
    chunks = chunks[shift:] + chunks[:shift]
    where = plan(desk.prefix.num_tokens, [chunk.num_tokens for chunk in chunks])
    cache = SlabCache(desk.model, desk.capacity)
    stitch(desk.model, where, desk.prefix, chunks, desk.tables, cache)
    logits = desk.model.forward(works.asked[question][0], cache, where.next_position, logits=True)
    assert logits is not None
    return logits


def test_the_timed_path_gives_the_logits_of_plain_stitching(works: CaseWorks) -> None:
    for question, logits in enumerate(works.logits()):
        expected = stitched_logits(works, question)
        assert (logits[0] - expected).abs().max().item() < 1e-4 * expected.std().item()
        # The control: the same chunks in another order are another answer.
        moved = stitched_logits(works, question, shift=1)
        assert (logits[0] - moved).abs().max().item() > 1e-2 * expected.std().item()
    assert works.deviation() < 1e-4


def test_one_pass_over_both_questions_gives_the_tokens_of_either(works: CaseWorks) -> None:
    expected = [int(stitched_logits(works, question).argmax()) for question in range(2)]
    works.cool()
    assert works.first_tokens() == expected == works.first_tokens_in_turn() == works.question_alone()
    assert len(set(expected)) == 2, "either question's token would do for both"
    assert works.full_prefill_batch() == works.full_prefill()
    assert works.works().keys() >= SEVERAL


def test_two_questions_have_files_of_their_own_and_cold_reads_them_all(works: CaseWorks) -> None:
    paths = [file.path for files in works.files for file in files]
    assert len(paths) == len(set(paths)) == 6
    sizes = works.disk_bytes()
    assert sizes[Mode.COLD.value] == works.desk.payload(works.case) > 0
    assert sizes[Mode.VRAM.value] == 0


def test_all_ways_of_full_prefill_agree(works: CaseWorks) -> None:
    for prompt in works.prompts:
        tokens = {way() for way in works.desk.full.ways(prompt).values()}
        assert tokens == {works.desk.full.behind_prefix(prompt, 12)}


def test_their_files_are_chosen_by_length(tmp_path: Path) -> None:
    shape = shapes.model_shape("tiny").chunk_shape
    files = TheirFiles.write(tmp_path / "theirs", shape, [[64, 64, 22], [64, 30]], 1 << 24)
    assert files.lengths == (64, 64, 22, 30)
    assert [path.name for path in files.of([64, 30]).matkv] == ["matkv-0.bin", "matkv-3.bin"]
    assert not files.covers([64, 64, 64]) and files.covers([30])


def test_whole_answers_decode_what_they_prefilled(model: LanguageModel, tmp_path: Path) -> None:
    prefix = shapes.random_prefix(model, 12)
    tables = build_tables(model, 256)
    job = Job(100, 7, 5, 2)
    pool = ChunkPool(tmp_path, shapes.model_shape("tiny").chunk_shape)
    bench = Answering(model, prefix, tables, pool, job, chunk=64, graphs=False, threads=2)
    try:
        answers = bench.full_prefill()
        for row, answer in enumerate(answers):
            ids = bench._prompts[row].tolist()
            for token in answer:
                logits = model.forward(torch.tensor(ids), SlabCache(model, len(ids)), 0, logits=True)
                assert logits is not None and int(logits.argmax()) == token
                ids.append(token)
        bench.cool()
        assert bench.cached() == bench.cached()
    finally:
        bench.loader.close()


def test_the_command_writes_every_part_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--shape tiny --contexts 150+9,70+5 --questions 1,2 --chunk 64 --prefix 12 --jobs tiny=70+5+4:1,2 --big-mib 16 "
        "--seconds 1 --threads 2"
    )
    files = ["--out", str(tmp_path / "out"), "--dir", str(tmp_path / "place")]
    assert contexts.main([*options.split(), *files]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    parts = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("ttft", "e2e")}
    assert line["values"] == "random" and line["ttft"]["cases"] == parts["ttft"]["cases"]
    first = parts["ttft"]["cases"][0]
    measured = set(first["modes"])
    assert {mode.value for mode in Mode} - SEVERAL <= measured and not measured & SEVERAL
    assert {"TurboRAG's loader, cold", "MatKV's loader, in RAM"} <= measured
    assert all(times["wall_ms"] == sorted(times["wall_ms"]) and times["n"] >= 3 for times in first["modes"].values())
    done = len(parts["ttft"]["cases"]) + len(parts["ttft"]["left_out"])
    assert done == 4
    assert [job["batch"] for job in parts["e2e"]["jobs"]] == [1, 2]
    assert whole_answer.COLD in parts["e2e"]["jobs"][1]["ratio_to_full_prefill"]
    assert not list((tmp_path / "place").iterdir())
    assert "files written" in (tmp_path / "out" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "nothing-1b"], "nothing-1b"),
        (["--contexts", "many"], "many"),
        (["--parts", "ttft,speed"], "speed"),
        (["--jobs", "tiny=20"], "20"),
        (["--shape", "llama-3.1-70b"], "smaller"),
        (["--shape", "tiny", "--most-mib", "0", "--parts", "ttft"], "--most-mib"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(arguments: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        contexts.main(["--out", str(tmp_path / "out"), "--dir", str(tmp_path / "place"), *arguments])
    assert said in f"{error.value} {error.value.remedy}"

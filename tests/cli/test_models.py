"""`desk-rag models` shows what is here, fits it to the machine, and writes a choice without touching comments."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from desk_rag.cli.main import main
from desk_rag.model.library import machine as machine_module
from desk_rag.model.library.fit import Machine, rank
from desk_rag.model.library.installed import Installed, Shape
from desk_rag.model.memory.plan import cache_bytes
from tests.model.gguf.families import TINY, write_tiny
from tests.model.hostile_models import plain_model
from tests.model.library.test_other_programs import put
from tests.tui.terminal import Terminal


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an Ollama model and no Hugging Face cache."""
    file = tmp_path / "tiny.gguf"
    write_tiny(file, TINY["qwen2"], Kind.Q8_0)
    put(tmp_path / "ollama", "registry.ollama.ai/library/tiny/3b", file)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("DESK_RAG_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DESK_RAG_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    (tmp_path / "config.toml").write_text('# mine\nfolders = ["~/a"]  # the letters\n\n[answer]\ntop_k = 4\n')
    return tmp_path


def test_a_terminal_is_told_what_takes_time(tmp_path: Path) -> None:
    terminal = Terminal(["-m", "desk_rag", "--data-dir", str(tmp_path), "models", "list"], env={"HOME": str(tmp_path)})
    try:
        assert terminal.wait(60) == 0
        assert "looking at the models on this machine …".encode() in terminal.raw
        assert "looking at" not in terminal.text and "embedded" in terminal.text, "the line has made way"
    finally:
        terminal.close()


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["models", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert isinstance(report, dict)
    return report


def test_the_list_has_what_is_here(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = place / "hub" / "models--org--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    for file in plain_model().iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    listed = reported(capsys, "list", "--folder", str(place))["models"]
    assert isinstance(listed, list)
    by_name = {model["name"]: model for model in listed}
    assert list(by_name)[:3] == ["embedded", "org/name", "tiny:3b"]
    assert by_name["embedded"]["kv_bytes_per_token"] == 2560
    assert by_name["tiny:3b"]["license"] == "Apache License" and by_name["tiny:3b"]["form"] == "GGUF Q8_0"
    assert str(place / "tiny.gguf") in by_name
    assert main(["models"]) == 0
    assert "tiny:3b  [Ollama]" in capsys.readouterr().out


def test_a_model_that_cannot_be_used_is_listed_with_the_reason(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "broken.gguf").write_bytes(b"GGUF\x03\0\0\0")
    listed = reported(capsys, "list", "--folder", str(place))["models"]
    assert isinstance(listed, list)
    broken = next(model for model in listed if str(model["name"]).endswith("broken.gguf"))
    assert "cut short" in broken["refusal"] and broken["shape"] is None


def test_what_asking_would_refuse_is_listed_as_refused_and_has_no_numbers(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLX's form, an embedder, a tokenizer that is missing and a model that hears are told apart."""
    for name in ("mlx", "embedder", "bare", "heard"):
        shutil.copytree(plain_model(), place / "models" / name)
    config = json.loads((plain_model() / "config.json").read_text())
    mlx = {**config, "quantization": {"group_size": 64, "bits": 4}}
    (place / "models" / "mlx" / "config.json").write_text(json.dumps(mlx))
    (place / "models" / "embedder" / "modules.json").write_text("[]")
    (place / "models" / "bare" / "tokenizer.json").unlink()
    (place / "models" / "heard" / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    listed = reported(capsys, "list", "--folder", str(place / "models"))["models"]
    assert isinstance(listed, list)
    refusals = {Path(model["name"]).name: model["refusal"] for model in listed if model["source"] == "folder"}
    assert "MLX" in refusals["mlx"] and "writes no text" in refusals["embedder"]
    assert "no tokenizer.json" in refusals["bare"] and "'whisper'" in refusals["heard"]
    assert main(["models", "fit", str(place / "models" / "mlx")]) == 0
    lines = capsys.readouterr().out
    assert "mlx: cannot be used: " in lines and "tokens" not in lines.split("cannot be used")[1].split("\n\n")[0]
    assert "embedded" not in lines.split("Known to suit")[0], "one model was asked about"


def test_fit_knows_the_text_of_an_indexed_folder(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def characters_in(*folder: str) -> object:
        """Without the rates of this machine, which take seconds to measure."""
        with monkeypatch.context() as patch:
            patch.setattr(machine_module, "with_rates", lambda measured, _settings: measured)
            return reported(capsys, "fit", *folder)["machine"]["text_characters"]  # type: ignore[index]

    (place / "docs").mkdir()
    (place / "docs" / "a.txt").write_text(" ".join(f"Boiler {number} was serviced in May." for number in range(40)))
    assert characters_in() == 0
    assert main(["index", "--no-kv", str(place / "docs")]) == 0
    capsys.readouterr()
    report = reported(capsys, "fit", "--folder", str(place / "docs"))
    characters = report["machine"]["text_characters"]  # type: ignore[index]
    assert 1000 < characters < 1400
    reader = next(model for model in report["models"] if model["name"] == "embedded")  # type: ignore[attr-defined]
    assert 0 < reader["tokens_per_second"]["none"] < 100_000
    assert reader["suits"] and reader["folder_bytes"] == cache_bytes(characters, 2560, embedded=True)
    assert characters_in("--folder", str(place / "other")) == 0


def test_few_heads_come_before_few_parameters_and_what_does_not_fit_last() -> None:
    def model(name: str, parameters: float, kv_heads: int, refusal: str = "") -> Installed:
        shape = Shape("llama", int(parameters), 10**8, 28, kv_heads, 128, 32768)
        return Installed(name, "hub", None, 0, "safetensors", shape, "", refusal)

    models = [
        model("small-many", 1e9, 16),
        model("large-few", 3e9, 2),
        model("huge", 70e9, 1),
        model("odd", 1e8, 1, "MLA"),
    ]
    machine = Machine(8 << 30, 8 << 30, 16 << 30, 20 << 30, 4_000_000)
    ranked = rank(models, machine)
    assert [fit.model.name for fit in ranked] == ["large-few", "small-many", "huge", "odd"]
    assert ranked[0].quantization == "none" and ranked[0].suits
    assert not ranked[1].fits_budget and not ranked[2].quantization and not ranked[3].suits
    assert rank([model("seven", 7e9, 4)], machine)[0].quantization == "nf4"


def test_speed_follows_from_the_weights_that_a_token_reads() -> None:
    plain = Shape("llama", 2 * 10**9, 10**8, 28, 4, 128, 32768, cpu_bytes={"int8": 2 * 10**9})
    experts = replace(plain, dense=False, cpu_bytes={})
    models = [Installed(name, "hub", None, 0, "safetensors", each) for name, each in (("a", plain), ("b", experts))]
    rates = {"small": 9e9, "none": 2e9, "int8": 8.88e9}
    machine = Machine(0, 0, 64 << 30, 20 << 30, 0, coded_forms=("int8",), weights_per_second=rates)
    speeds = {each.model.name: each.tokens_per_second for each in rank(models, machine)}
    assert speeds == {"a": {"none": 1.0, "int8": 4.4}, "b": {}}
    card = replace(machine, gpu_bytes=8 << 30, gpu_free_bytes=8 << 30, weights_per_second={"nf4": 2e11})
    assert rank(models[:1], card)[0].tokens_per_second == {"nf4": 100.0}


def test_int4_is_chosen_on_a_cpu_only_where_int8_does_not_fit() -> None:
    """A model of 4 billion parameters, by the memory that is free."""
    sizes = {"int8": 4_840_000_000, "int4": 3_460_000_000}
    model = Installed(
        "four", "hub", None, 0, "safetensors", Shape("qwen3", 4 * 10**9, 4 * 10**8, 36, 8, 128, 32768, cpu_bytes=sizes)
    )

    def chosen(free: float, *forms: str) -> str:
        machine = Machine(0, 0, int(free * 1e9), 200 << 30, 0, coded_forms=forms)
        return rank([model], machine)[0].quantization

    assert [chosen(free, "int8", "int4") for free in (16, 8, 5, 3)] == ["none", "int8", "int4", ""]
    assert [chosen(free, "int4") for free in (8, 5)] == ["int4", "int4"]
    assert chosen(8) == ""


def test_use_writes_the_choice_and_keeps_comments(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(capsys, "use", "tiny:3b")["used"] == "tiny:3b"
    text = (place / "config.toml").read_text()
    assert text.startswith('# mine\nfolders = ["~/a"]  # the letters\n') and 'name = "tiny:3b"' in text
    assert reported(capsys, "use", str(place / "tiny.gguf"))["used"] == str(place / "tiny.gguf")
    assert reported(capsys, "use", "embedded")["used"] == "embedded"
    assert "# the letters" in (place / "config.toml").read_text()


@pytest.mark.parametrize("name", ["no-such:model", "org/not-here", "/no/such.gguf"])
def test_use_refuses_what_is_not_here_and_writes_nothing(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (place / "config.toml").read_text()
    assert main(["models", "use", name]) == 5
    assert (place / "config.toml").read_text() == before
    assert capsys.readouterr().err.startswith("desk-rag: ")


def test_download_does_not_connect_where_the_hub_is_switched_off(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "download", "org/name"]) == 5
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err
    assert main(["models", "download", "not a name"]) == 5
    assert main(["models", "download"]) == 2

"""Settings are strict: an unknown key names its neighbour, a bad value its place, and nothing is guessed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from desk_rag.config import GIB, ModelSettings, Settings, default_path, load, with_changes
from desk_rag.errors import ConfigError


def written(place: Path, text: str) -> Path:
    file = place / "config.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_missing_default_file_means_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not default_path().exists()
    assert load() == Settings()


def test_the_default_file_is_read_when_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    default_path().parent.mkdir(parents=True, exist_ok=True)
    default_path().write_text("[answer]\ntop_k = 3\n", encoding="utf-8")
    assert load().answer.top_k == 3


def test_a_missing_named_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere.toml") as caught:
        load(tmp_path / "nowhere.toml")
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_every_section_can_be_set(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        folders = ["/home/anna/Documents", "notes"]
        data_dir = "/var/cache/desk"
        [model]
        quantization = "nf4"
        threads = 3
        [answer]
        max_new_tokens = 99
        [store]
        budget_gib = 0.5
        [index]
        exclude = ["*.log", "old/"]
        [idle]
        on_battery = true
        """,
    )
    settings = load(file)
    assert settings.folders == (Path("/home/anna/Documents"), Path("notes"))
    assert settings.data_dir == Path("/var/cache/desk")
    assert (settings.model.quantization, settings.model.threads) == ("nf4", 3)
    assert settings.answer.max_new_tokens == 99
    assert settings.answer.top_k == Settings().answer.top_k
    assert settings.store.budget_gib * GIB == 2**29
    assert settings.index.exclude == ("*.log", "old/")
    assert settings.idle.on_battery is True


def test_a_selector_that_only_benchmarks_have_now_becomes_the_default(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[answer]\nselector = "first-k"\n')
    assert load(tmp_path / "config.toml").answer.selector == "edge-query"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[anwser]\ntop_k = 1\n", ["'anwser'", "did you mean 'answer'"]),
        ("[answer]\ntopk = 1\n", ["'answer.topk'", "did you mean 'top_k'"]),
        ("data_dri = 'x'\n", ["'data_dri'", "did you mean 'data_dir'"]),
        ("[model]\nzzzzqqq = 1\n", ["'model.zzzzqqq'"]),
    ],
)
def test_an_unknown_key_is_named_with_its_nearest_neighbour(tmp_path: Path, text: str, said: list[str]) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    for part in [*said, str(file)]:
        assert part in caught.value.message
    assert ("did you mean" in caught.value.message) == (len(said) == 2)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[answer]\ntop_k = -1\n", "answer.top_k"),
        ("[answer]\ntop_k = 65\n", "answer.top_k"),
        ("[answer]\ntop_k = 'many'\n", "answer.top_k"),
        ("[model]\nquantization = 'int3'\n", "model.quantization"),
        ("[model]\ndevice = 'tpu'\n", "model.device"),
        ("[store]\nbudget_gib = -1\n", "store.budget_gib"),
        ("[idle]\ngpu_busy_percent = 101\n", "idle.gpu_busy_percent"),
        ("[index]\nparser_mib = 1\n", "index.parser_mib"),
        ("folders = 'one'\n", "folders"),
        ("answer = 3\n", "answer"),
    ],
)
def test_a_value_out_of_range_is_named(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert f"'{where}'" in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("top_k = 3\n", "unknown setting 'top_k'; it belongs under [answer]."),
        ("[model]\nbudget_gib = 3\n", "unknown setting 'model.budget_gib'; it belongs under [store]."),
        ("[answer]\nfolders = ['x']\n", "unknown setting 'answer.folders'; it belongs at the top of the file"),
        ("[model]\ntopk = 3\n", "unknown setting 'model.topk'; did you mean 'top_k', under [answer]?"),
        ("folders = '~/x'\n", "'folders': must be a list, such as [\"...\"]."),
        ("folders = ['a', 3]\n", "'folders.entry 2': must be text in quotes."),
        ("[index]\nexclude = '*.log'\n", "'index.exclude': must be a list"),
        ("[answer]\nrecompute = 'often'\n", "'answer.recompute': must be a number."),
        ("[answer]\nrecompute = 1.5\n", "'answer.recompute': must be at most 1."),
        ("[answer]\ntop_k = 'many'\n", "'answer.top_k': must be a whole number."),
        ("[model]\ndevice = 'tpu'\n", "'model.device': must be 'auto', 'cpu' or 'cuda'."),
        ("[idle]\non_battery = 'x'\n", "'idle.on_battery': must be true or false."),
        ("answer = 3\n", "'answer': is a section: write [answer] on a line of its own"),
        ("[store]\nbudget_gib = inf\n", "'store.budget_gib': must be a finite number."),
        ("[store]\nreserve_gib = nan\n", "'store.reserve_gib': must be a finite number."),
        ("[index]\nmax_file_mib = 1e300\n", "'index.max_file_mib': must be at most 4,000,000,000."),
        ("[idle]\nquiet_seconds = -1\n", "'idle.quiet_seconds': must be at least 0."),
        ("data_dir = ''\n", "'data_dir': is empty, and would mean the current directory"),
        ("data_dir = ' '\n", "'data_dir': is empty"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert f"config.toml: {said}" in caught.value.message and caught.value.exit_code == 2
    for jargon in ("Input", "tuple", "literal[", "constrained", "model_"):
        assert jargon not in caught.value.message


def test_every_number_that_may_be_set_can_be_reckoned_with() -> None:
    for section in (Settings().store, Settings().index, Settings().idle):
        for name, field in type(section).model_fields.items():
            if field.annotation is float:
                for value in (float("inf"), float("nan"), 1e300):
                    with pytest.raises(ValidationError):
                        type(section).model_validate({name: value})


@pytest.mark.parametrize("text", ['"0,1,3"', "[0, 1, 3]", '" 0, 1 ,3"'])
def test_rungs_may_be_a_list_or_words(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[model]\nrungs = {text}\n")
    assert load(file).model.rungs == (0, 1, 3)
    assert Settings().model.rungs == (0,)
    changed = with_changes(Settings().model, {"rungs": "0,2", "device": "cpu"})
    assert changed == ModelSettings(rungs=(0, 2), device="cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [("[1, 3]", "first must be 0"), ("[]", "first must be 0"), ("[0, 3, 1]", "ascend"), ('"0,0"', "ascend"),
     ("[0, 8]", "8 is too many: there are 7 filler passages"), ('"0;1"', "not a list of numbers"),
     ("3", "first must be 0"),
     ("[0, 1.5]", "not a list of numbers"), ("[false, true]", "not a list of numbers")],
)  # fmt: skip
def test_rungs_that_make_no_ladder_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[model]\nrungs = {text}\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert f"{file}: 'model.rungs': " in caught.value.message and said in caught.value.message
    assert "for one: rungs = [0, 1, 3]" in caught.value.message and caught.value.remedy
    with pytest.raises(ConfigError, match="The command line: 'rungs'"):
        with_changes(Settings().model, {"rungs": "1"})


def test_two_mistakes_are_both_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, "[answer]\ntop_k = 65\nmax_new_tokens = -1\n"))
    assert "answer.top_k" in caught.value.message
    assert "answer.max_new_tokens" in caught.value.message


@pytest.mark.parametrize("content", [b"[answer\n", b"top_k =", b"\xff\xfe\x00", b"a = 1\na = 2\n"])
def test_what_is_not_toml_is_an_error_with_the_files_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="config.toml") as caught:
        load(file)
    assert caught.value.remedy


def test_a_directory_in_its_place_is_not_a_settings_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load(tmp_path)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)  # root, as in a container, may read what has no permissions
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file)


def test_settings_cannot_be_changed_in_place() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.answer.top_k = 3  # type: ignore[misc]


def test_reading_settings_loads_no_torch() -> None:
    code = "import sys, desk_rag.config, desk_rag.sanitize; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('data_dir = "/tmp/x\\u0000y"', "'data_dir' holds a NUL"),
        ('[model]\nname = "a\\u0000b"', "'model.name' holds a NUL"),
        ('folders = ["a", "b\\u0000"]', "'folders' holds a NUL"),
        ("[index]\nparser_mib = 99999999999999", "'index.parser_mib': must be at most"),
        (f"[index]\nparser_mib = {'9' * 6000}", "is not valid TOML"),
        (f"x = {'[' * 5000}{']' * 5000}", "too deep"),
        ('data_dir = "~nobody-at-all/x"', "a user whom this system does not know"),
        ('folders = ["~nobody-at-all"]', "a user whom this system does not know"),
    ],
)
def test_whatever_stands_in_the_file_is_an_error_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert said in caught.value.message


@pytest.mark.parametrize("setting", ["name", "embedder"])
@pytest.mark.parametrize("given", ["", "  "])
def test_a_blank_model_is_refused_in_words(setting: str, given: str) -> None:
    with pytest.raises(ConfigError, match="is blank; name 'embedded', a directory, or ORG/NAME"):
        with_changes(Settings().model, {setting: given})

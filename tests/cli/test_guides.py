"""README and guides say what the code does: commands parse, tables match the code, shown output is what is printed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from desk_rag.bench.harness.catalogue import benchmarks, module_of
from desk_rag.cli import help
from desk_rag.cli import main as cli
from desk_rag.config import Settings
from desk_rag.documents import formats
from desk_rag.errors import EXIT_CODES, ConfigError, DeskRagError
from desk_rag.ingest.transfer import Copied
from desk_rag.model.gguf.config import architectures
from desk_rag.store.types import Activity, PurgeReport, VerifyReport
from tests.cli import guide_tables

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = {file.stem: file.read_text(encoding="utf-8") for file in guide_tables.GUIDES.glob("*.md")}


def test_readme_stays_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 250
    assert not [line for line in lines if len(line) > 120 and not line.startswith(("[1] ", "|"))]
    assert not re.search(r"(?<!!)\[[^\]]*\]\((?!https?:)", README), "a relative link breaks outside the repository"
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", README)  # outside, their text stands in their place
    assert pictures and all(text and (ROOT / file).is_file() for text, file in pictures)


@pytest.mark.parametrize("name", GUIDES)
def test_parts_taken_from_the_code_are_up_to_date(name: str) -> None:
    assert GUIDES[name] == guide_tables.filled(GUIDES[name]), "run python -m tests.cli.guide_tables"


def test_settings_guide_is_a_settings_file_with_every_default() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", GUIDES["settings"], re.DOTALL)
    defaults = Settings().model_dump(mode="json", exclude_none=True)
    del defaults["data_dir"]  # differs by system; shown as a comment
    assert tomllib.loads(shown) == defaults
    assert "\n# data_dir = " in shown
    for line, following in zip(shown.splitlines(), shown.splitlines()[1:], strict=False):
        assert not re.match(r"\w+ = ", following) or line.startswith("# "), f"no description: {following}"


def test_readme_settings_exist_with_these_names() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    Settings.model_validate(tomllib.loads(shown))


def test_every_exit_code_is_documented() -> None:
    def codes(kind: type[DeskRagError]) -> set[int]:
        return {kind.exit_code}.union(*map(codes, kind.__subclasses__()))

    assert codes(DeskRagError) | {0} == set(EXIT_CODES)
    for code in EXIT_CODES:
        assert f"| {code} | " in GUIDES["json"]
        assert re.search(rf"\b{code}\b", README.split("Exit codes:")[1][:200])


def test_every_format_is_listed_once() -> None:
    assert not set(formats._UNREAD_BY_SUFFIX) & set(formats._BY_SUFFIX), "cannot be read and not read"
    for suffix in (*formats._BY_SUFFIX, *formats._UNREAD_BY_SUFFIX):
        assert re.search(rf"\.{suffix}[, |]", GUIDES["files"]), suffix


def test_every_benchmark_and_architecture_of_gguf_is_listed() -> None:
    section = GUIDES["benchmarks"].split("## Measuring", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)) == set(benchmarks())
    for architecture in architectures():
        assert f"`{architecture}`" in GUIDES["models"]


def test_json_guide_names_the_keys_of_the_reports() -> None:
    for report in (Activity, Copied, PurgeReport, VerifyReport):
        for key in report.__dataclass_fields__:
            assert f"`{key}`" in GUIDES["json"], f"{report.__name__}.{key}"


# Commands -----------------------------------------------------------------------------------------------------------


def _commands(text: str) -> Iterator[str]:
    """Every `desk-rag …` line in a console block and every one quoted in a sentence, usage marks resolved."""
    text = text.replace("\\|", "|")
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        yield from re.findall(r"^\$ (?:\.venv/bin/)?(desk-rag .*)$", block, re.MULTILINE)
    for span in re.findall(r"`(desk-rag [^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        yield " ".join(span.split())
    for cell in re.findall(r"^\| ((?:`[^`]*`(?:, )?)+) \|", text.partition("## Commands")[2], re.MULTILINE):
        for usage in re.findall(r"`([^`]*)`", cell):
            yield usage if usage.startswith("desk-rag") else f"desk-rag {usage}"


ALL_COMMANDS = sorted({command for text in (README, *GUIDES.values()) for command in _commands(text)})


def test_commands_were_found() -> None:
    assert len(ALL_COMMANDS) > 40
    assert {"desk-rag index FOLDER… [--no-kv] [--dry-run]", "desk-rag watch ~/Documents"} <= set(ALL_COMMANDS)


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_documented_command_parses(command: str) -> None:
    sample = {"N": "3", "FOLDER": ".", "FOLDER…": ".", "F": ".", "TOPIC": "files", "COMMAND": "ask", "NAME": "ttft"}
    words = [sample.get(word, word) for word in shlex.split(re.sub(r"[\[\]]", "", command))[1:]]
    if words[:1] == ["~/Documents"]:
        words[0] = "."
    _parse(words)


def _parse(words: list[str]) -> None:
    """Parse as the program would, without running the command. Raises ConfigError, UsageError or AssertionError."""
    routed = cli.route(words)
    group = get_command(cli.app)
    context = group.make_context("desk-rag", list(routed), resilient_parsing="--version" in routed)
    rest = [*context._protected_args, *context.args]
    if not rest:
        return
    name, *own = rest
    assert name in group.commands, name  # type: ignore[attr-defined]
    if name == "finetune":
        from desk_rag.cli.training.finetune import _parser

        if own and "--help" not in own:
            _parser().parse_args(own)
    elif name == "bench":
        if own and own[0] not in ("--help", "-h"):
            assert own[0] in benchmarks(), own[0]
            usage = _help_of(module_of(own[0]).main)
            for option in (word for word in own[1:] if word.startswith("--")):
                assert option in usage, f"{own[0]} has no {option}"
    elif name == "help" and own:
        assert own[0] in help.TOPICS, own[0]
    elif "--help" not in own:
        group.commands[name].make_context(name, own, parent=context)  # type: ignore[attr-defined]


def _help_of(main: object) -> str:
    assert callable(main)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main(["--help"])
    return shown.getvalue()


# desk-rag help ------------------------------------------------------------------------------------------------------


def test_topics_are_the_guides() -> None:
    assert set(help.TOPICS) == set(GUIDES)


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_help_lists_topics_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "help")
    assert code == 0
    for topic in help.TOPICS:
        assert f"\n  {topic} " in out
    for command in ("index", "ask", "finetune"):
        assert re.search(rf"\b{command}\b", out)


@pytest.mark.parametrize("topic", GUIDES)
def test_guide_is_printed_as_plain_lines(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "help", topic)
    assert code == 0
    assert "\x1b" not in out and "\xa0" not in out and "<!--" not in out and "```" not in out
    assert not re.search(r"^\|", out, re.MULTILINE), "a table is left as Markdown"
    prose = [line for line in out.splitlines() if not line.startswith("    ") and "  " not in line]
    assert max(map(len, prose)) <= 100


def test_settings_guide_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "help", "settings")
    for section in Settings.model_fields.values():
        for name in getattr(section.annotation, "model_fields", ()):
            assert re.search(rf"^    (# )?{name} = ", out, re.MULTILINE), name


@pytest.mark.parametrize(
    ("word", "meant"), [("setings", "settings"), ("privcy", "privacy"), ("bensh", "bench"), ("vram", "models")]
)
def test_unknown_topic_names_the_nearest(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "help", word)
    assert code == 2 and not out
    assert f"no guide named '{word}'" in err and f"desk-rag help {meant}" in err


def test_topic_like_no_other_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("xyzzyx", "nope"):
        _, _, err = _run(capsys, "help", word)
        assert all(topic in err for topic in help.TOPICS) and "Did you mean" not in err


def test_help_on_a_command_shows_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "help", "search")
    assert code == 0 and "--words" in out
    assert cli.route(["help", "bench", "ttft"]) == ["bench", "ttft", "--help"]
    assert cli.route(["help", "settings"]) == ["help", "settings"]


def test_unknown_word_names_the_commands() -> None:
    with pytest.raises(ConfigError, match="'frobnicate' is not a command or a folder") as refused:
        cli.route(["frobnicate"])
    assert "Commands: open, index, ask" in str(refused.value)
    assert cli.route(["/no/such/folder"]) == ["open", "/no/such/folder"], "a path is answered as a path"


def test_render_wraps_tables_lists_and_code() -> None:
    markdown = "# T\n\nSee `a b`, [site](https://x.y) and **bold**.\n\n- one two\n\n```text\nlong   code\n```\n\n"
    markdown += "| n | what |\n|---:|---|\n| 1 | alpha beta gamma delta |\n"
    expected = [
        "T", "=", "", "See `a b`, site and", "bold.", "", "- one two", "", "    long   code", "",
        "n  what", "-  ----------------", "1  alpha beta gamma", "   delta",
    ]  # fmt: skip
    assert help.render(markdown, 19).splitlines() == expected
    assert help.render("# T\n", 19, bold=True) == "\x1b[1mT\x1b[0m\n"


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys, json, io, contextlib\nfrom desk_rag.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(['help', 'settings'])\n"
        "print(json.dumps(sorted(set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "numpy", "textual", "desk_rag.config"} & set(json.loads(done.stdout))


# Shown output -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_readme_shows_what_is_printed(tmp_path: Path) -> None:
    """Numbers of measurements may differ; a line '…' stands for lines left out."""
    (block,) = (part for part in re.findall(r"```console\n(.*?)```", README, re.DOTALL) if "desk-rag index" in part)
    for part in block.split("$ desk-rag ")[1:]:
        command, *shown = part.splitlines()
        done = subprocess.run(
            [sys.executable, "-m", "desk_rag", "--data-dir", str(tmp_path / "data"), *shlex.split(command)],
            cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=300,
        )  # fmt: skip
        printed = [line for line in done.stdout.splitlines() if not re.search(r", [\d.]+/s, .* left$", line)]
        pattern = "".join(".*" if line == "…" else re.escape(_measured(line)) + "\n" for line in shown)
        assert re.fullmatch(pattern, "".join(_measured(line) + "\n" for line in printed), re.DOTALL), done.stdout


def _measured(line: str) -> str:
    """Return the line without durations."""
    return re.sub(r"\d[\d.]* (min \d+ s|s)\b", "N", line)


def test_every_fault_of_the_reliability_guide_has_tests() -> None:
    text = (ROOT / "assets" / "guides" / "reliability.md").read_text(encoding="utf-8")
    rows = text.partition("## Faults, and the test of each")[2].partition("\n## ")[0].splitlines()[4:]
    written = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for row in filter(None, rows):
        named = re.findall(r"`(test_\w+)`", row)
        assert named and all(f"def {name}(" in written for name in named), row

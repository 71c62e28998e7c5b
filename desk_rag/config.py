"""Define every setting with its default, load them strictly from TOML, and locate data on this system.

An unknown key is an error that names the nearest known one. Precedence: command line, then the file, then the default.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from desk_rag.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

GIB = 1024**3
_MOST = 4e9
"""Largest size or time, about a century in seconds: larger numbers overflow in calls of the operating system."""
_MOST_MIB = 1 << 24
"""Largest size in MiB, 16 TiB: more is a typing error, and exceeds the operating system's limits."""
MOST_PRIMERS = 7
"""The highest rung: the number of filler passages there are (kv/prefix_variants/filler_passages.py)."""


def _whole(part: object) -> int:
    if isinstance(part, str) or type(part) is int:
        return int(part)
    raise ValueError(f"'{part}' is not a whole number")


def rungs_of(value: object) -> tuple[int, ...]:
    """Return rungs from '0,1,3' or from a list of numbers. Raises ValueError that says what is wrong."""
    parts = value.split(",") if isinstance(value, str) else value
    example = "; for one: rungs = [0, 1, 3]"
    try:
        rungs = tuple(_whole(part) for part in parts) if isinstance(parts, Iterable) else ()
    except (TypeError, ValueError) as error:
        raise ValueError(f"'{value}' is not a list of numbers{example}") from error
    if not rungs or rungs[0] != 0:
        raise ValueError(f"the first must be 0, a chunk with nothing but the shared prefix before it{example}")
    if list(rungs) != sorted(set(rungs)):
        raise ValueError(f"they must ascend, each number once{example}")
    if rungs[-1] > MOST_PRIMERS:
        raise ValueError(f"{rungs[-1]} is too many: there are {MOST_PRIMERS} filler passages{example}")
    return rungs


def _named(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty, and would mean the current directory; name one, or leave the setting out")
    return _at_home(value)


def _at_home(value: object) -> object:
    if isinstance(value, str | Path):
        try:
            Path(value).expanduser()
        except RuntimeError as error:  # ~somebody
            raise ValueError(f"'{value}' names the home directory of a user whom this system does not know") from error
    return value


def _named_or_empty(value: object) -> object:
    if isinstance(value, str) and value and not value.strip():
        raise ValueError("is blank; name a directory, or leave the setting out")
    return value


def _model_named(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("is blank; name 'embedded', a directory, or ORG/NAME")
    return value


_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
}
_PLAIN = {
    **dict.fromkeys(("tuple_type", "list_type"), 'must be a list, such as ["..."]'),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("string_type", "path_type"), "must be text in quotes"),
    "finite_number": "must be a finite number",
}
"""Sentences about a setting for pydantic's kinds of error."""


def _shipped_selector(value: object) -> object:
    """Replace a selector of former versions that only benchmarks still have."""
    return "edge-query" if value in ("first-k", "delta-kv", "query") else value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSettings(_Section):
    """[model]"""

    name: Annotated[str, BeforeValidator(_model_named)] = "embedded"
    """'embedded' (the reader that ships with desk-rag), a directory, a GGUF file, an Ollama name, or ORG/NAME."""
    quantization: Literal["none", "nf4", "int8", "int4"] = "none"
    """Quantisation of the weights; nf4 needs an NVIDIA GPU, int8 one or a CPU since about 2021, int4 a CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; 'auto' takes the GPU if there is one."""
    adapter: str = ""
    """Directory of an adapter that `desk-rag finetune` made for this model; empty for none."""
    embedder: Annotated[str, BeforeValidator(_model_named)] = "embedded"
    """'embedded' (all-MiniLM-L6-v2, offline), or any sentence-transformers name or path."""
    rungs: Annotated[tuple[int, ...], BeforeValidator(rungs_of)] = (0,)
    """Cache variants per passage; [0, 1, 3] takes three times the disk, and helps models that were not fine-tuned."""
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    """CPU threads for the model; 0 takes OMP_NUM_THREADS, or the physical cores less one."""
    allow_download: bool = False
    """Fetch a missing model from the Hugging Face hub, as --download does; otherwise no connection is opened."""


class AnswerSettings(_Section):
    """[answer]"""

    top_k: Annotated[int, Field(ge=0, le=64)] = 0
    """Chunks per answer; 0 follows the model (5 for the embedded reader, 6 for others)."""
    context_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens of chunks per answer; 0 follows the model (2,000 for the embedded reader)."""
    max_new_tokens: Annotated[int, Field(ge=0, le=4096)] = 0
    """Longest answer in tokens, reasoning apart; 0 follows the model and the question (160 for the embedded reader,
    up to 1,024 for models that write)."""
    choose_quote: bool = True
    """Embedded reader and embedder only: score every sentence against the question before quoting one.
    With false the reader alone decides what it quotes, which is less accurate."""
    attention: Literal["auto", "materialize", "lazy"] = "auto"
    """How a loaded cache is read. 'lazy' halves its memory and is slower; 'auto' takes it only on a GPU whose memory is
    too small for 'materialize'. Change it if answers run out of GPU memory."""
    recompute: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the passages read anew for each question; slower, for models that answer worse from caches."""
    selector: Annotated[Literal["edge-query", "aux", "aux-strict"], BeforeValidator(_shipped_selector)] = "edge-query"
    """How the part to be read anew is selected; without effect while `recompute` is 0."""
    auxiliary: str = "embedded"
    """Small model behind 'aux' and 'aux-strict', unused otherwise: 'embedded', 'smollm2-135m', a directory or name."""
    gpu_cache_mib: Annotated[int, Field(ge=0, le=_MOST_MIB)] = 0
    """GPU memory that keeps loaded caches between answers; 0 takes a quarter of what is free, at most 4,096."""
    ram_cache_mib: Annotated[int, Field(ge=0, le=_MOST_MIB)] = 0
    """RAM for the same purpose; 0 takes a sixteenth of it with a GPU, at most 2,048, else an eighth of what is free, at
    most 256."""


class StoreSettings(_Section):
    """[store]"""

    budget_gib: Annotated[float, Field(ge=0, le=_MOST)] = 20.0
    """Disk space for the chunk caches of all models together; beyond it the least useful are deleted."""
    reserve_gib: Annotated[float, Field(ge=0, le=_MOST)] = 5.0
    """Free space on the drive that the caches leave alone."""
    kv_dir: Annotated[str, BeforeValidator(_named_or_empty)] = ""
    """An empty directory for the caches, on another drive for example; empty means inside the data directory."""

    @property
    def kv_place(self) -> Path | None:
        """`kv_dir` as a path; None where it is not set."""
        return Path(self.kv_dir).expanduser() if self.kv_dir else None


class IndexSettings(_Section):
    """[index]"""

    max_file_mib: Annotated[float, Field(gt=0, le=_MOST)] = 50.0
    """Larger files are left out, except plain text and tables, of which the beginning is read."""
    max_text_mib: Annotated[float, Field(gt=0, le=64)] = 5.0
    """Text of one file that is indexed, from its beginning; `why` and `status` name the files that hold more."""
    parser_seconds: Annotated[float, Field(gt=0, le=_MOST)] = 60.0
    """Longest time to extract the text of one file."""
    parser_mib: Annotated[int, Field(ge=256, le=_MOST_MIB)] = 2048
    """Memory for extracting the text of one file."""
    ocr: Literal["pdf", "all", "off"] = "pdf"
    """Text recognised with the extra "ocr": scanned PDF pages, or pictures, too ("all"). Each takes 2 to 6 seconds."""
    ocr_seconds: Annotated[float, Field(gt=0, le=_MOST)] = 300.0
    """Longest time for that per file; of a longer file the first pages are read."""
    exclude: tuple[str, ...] = ()
    """Patterns in .gitignore syntax, in addition to the defaults and the folders' own ignore files."""
    archives: bool = False
    """Read the files inside .zip and .tar archives; without it, only of archives that `desk-rag index` names."""
    hidden: bool = False
    """Read files and folders whose names begin with a dot, too."""
    sweep_seconds: Annotated[float, Field(gt=0, le=_MOST)] = 300.0
    """How often `watch` and the UI look through the folders for changes that the system did not report."""
    settle_seconds: Annotated[float, Field(ge=0, le=_MOST)] = 2.0
    """A changed file is read once its size and time have not changed for this long."""
    deletion_grace_hours: Annotated[float, Field(ge=0, le=_MOST / 3600)] = 72.0
    """How long documents are kept after many files of a folder vanish at once: this long for all of them, less for a
    smaller share, at least an hour. Caches of deleted documents are kept as long. 0 keeps nothing."""


class IdleSettings(_Section):
    """[idle]: when `watch` and the UI may fill caches in the background."""

    quiet_seconds: Annotated[float, Field(ge=0, le=_MOST)] = 10.0
    """The computer must have been idle this long."""
    gpu_busy_percent: Annotated[int, Field(ge=1, le=100)] = 20
    """GPU load by other programs from which the computer counts as busy."""
    gpu_free_mib: Annotated[int, Field(ge=0, le=_MOST_MIB)] = 1024
    """GPU memory that must be free."""
    cpu_busy_percent: Annotated[int, Field(ge=1, le=100)] = 40
    """CPU load by other programs, of all cores, from which the computer counts as busy; used without an NVIDIA GPU."""
    on_battery: bool = False
    """Fill caches on battery power, too."""
    write_gib_per_day: Annotated[float, Field(ge=0, le=_MOST)] = 40.0
    """Caches written to the drive per day, after which filling waits until midnight; spares an SSD. 0: no limit."""


class ResidentSettings(_Section):
    """[resident]: a process that keeps the models loaded, so that `ask` and `search` answer sooner."""

    keep: bool = False
    """`ask` leaves such a process behind, as `ask --keep` does."""
    free_minutes: Annotated[float, Field(gt=0, le=_MOST)] = 10.0
    """Minutes without a question after which it and `watch` free the memory of the models; the next loads them."""
    exit_minutes: Annotated[float, Field(gt=0, le=_MOST)] = 60.0
    """Minutes without a question after which a process that `ask` left behind ends. `watch` goes on."""


class ChatsSettings(_Section):
    """[chats]"""

    save: bool = True
    """Save questions and answers, so that they can be found and continued; `ask --private` does not."""


class UISettings(_Section):
    """[ui]"""

    theme: str = "desk-rag"
    """Colours of the UI; written when a theme is chosen in the command palette."""
    ascii: bool = False
    """Draw with ASCII signs only; done without this setting where the locale is not UTF-8."""
    notify: Literal["off", "bell", "osc9"] = "off"
    """Signal the end of a long answer or of indexing: 'bell' rings the terminal, 'osc9' shows a desktop notice."""
    keys: dict[str, str] = {}
    """Keys by action, such as { compare = 'f10' }; `desk-rag help keys` lists actions and keys."""


class Settings(_Section):
    """The whole file."""

    folders: tuple[Annotated[Path, BeforeValidator(_at_home)], ...] = ()
    """Folders for `desk-rag`, `index` and `watch` when the command names none."""
    data_dir: Annotated[Path, BeforeValidator(_named)] = Field(
        default_factory=lambda: Path(platformdirs.user_cache_dir("desk-rag"))
    )
    """Where index and caches are kept; the default is the system's cache folder, ~/.cache/desk-rag on Linux."""
    model: ModelSettings = ModelSettings()
    answer: AnswerSettings = AnswerSettings()
    store: StoreSettings = StoreSettings()
    index: IndexSettings = IndexSettings()
    idle: IdleSettings = IdleSettings()
    resident: ResidentSettings = ResidentSettings()
    chats: ChatsSettings = ChatsSettings()
    ui: UISettings = UISettings()


def default_path() -> Path:
    """Return the place of the settings file when none is named."""
    return Path(platformdirs.user_config_dir("desk-rag")) / "config.toml"


def load(path: Path | None = None) -> Settings:
    """Read settings from `path`, or from the default place if there is a file there.

    Raises ConfigError for a missing named file, malformed TOML, an unknown key or a value out of range.
    """
    file = path or default_path()
    if not file.is_file():
        if path is None:
            return Settings()
        raise ConfigError(f"No settings file at {path}.", remedy="Leave --config out to use the defaults.")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.", remedy="Correct its permissions.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not valid TOML: {error}.", remedy="Correct that line, or move the file away."
        ) from error
    return parsed(text, file)


def parsed(text: str, file: Path) -> Settings:
    """Return the settings in the text of a settings file; errors name `file`. Raises ConfigError."""
    try:
        return Settings.model_validate(_without_nul(tomllib.loads(text)))
    except RecursionError as error:
        raise ConfigError(
            f"{file} nests its values too deep to be read.", remedy="No setting needs more than a list in a section."
        ) from error
    except ValidationError as error:
        raise ConfigError(f"{file}: {_explain(error)}", remedy="Correct that line, or move the file away.") from error
    except ValueError as error:  # malformed, a number of thousands of digits
        raise ConfigError(
            f"{file} is not valid TOML: {error}.", remedy="Correct that line, or move the file away."
        ) from error


def _without_nul(settings: Mapping[str, object], section: str = "") -> Mapping[str, object]:
    """The settings unchanged. Raises ConfigError for text with a NUL in it, which no name of a file can have."""
    for key, value in settings.items():
        name = f"{section}{key}"
        if isinstance(value, Mapping):
            _without_nul(value, f"{name}.")
        elif any("\0" in text for text in _texts(value)):
            raise ConfigError(f"'{name}' holds a NUL character.", remedy="Correct that line of the settings file.")
    return settings


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return (value,)
    return (text for one in value for text in _texts(one)) if isinstance(value, list) else ()


def with_changes(section: ModelSettings, changes: Mapping[str, object]) -> ModelSettings:
    """Return the section with the options of the command line. Raises ConfigError."""
    try:
        return ModelSettings.model_validate(section.model_dump() | dict(changes))
    except ValidationError as error:
        raise ConfigError(f"The command line: {_explain(error)}", remedy="desk-rag --help says more.") from error


def _explain(error: ValidationError) -> str:
    lines: list[str] = []
    wrong: dict[str, list[str]] = {}
    for problem in error.errors():
        where = [str(part) for part in problem["loc"]]
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting '{'.'.join(where)}'{_hint(tuple(where))}")
        else:
            wrong.setdefault(".".join(_setting(where)), []).append(_plainly(problem))
    lines += [f"'{setting}': {'; '.join(reasons)}" for setting, reasons in wrong.items()]
    text = "; ".join(lines)
    return text if text.endswith("?") else f"{text}."


def _hint(where: tuple[str, ...]) -> str:
    """Return the section of the key, or the nearest known key: in its own section first, then in the others."""
    key, section = where[-1], where[:-1]
    sections = [name for name in Settings.model_fields if _is_section(name)]
    for name in sections:
        if (name,) != section and key in _known_keys((name,)):
            return f"; it belongs under [{name}]"
    if section and key in _known_keys(()):
        return "; it belongs at the top of the file, above all sections"
    near = difflib.get_close_matches(key, _known_keys(section), n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    for name in sections:
        if near := difflib.get_close_matches(key, _known_keys((name,)), n=1, cutoff=0.75):
            return f"; did you mean '{near[0]}', under [{name}]?"
    return ""


def _plainly(problem: ErrorDetails) -> str:
    """Return the fault in the words of a settings file rather than of the library that checked it."""
    kind, limits = problem["type"], problem.get("ctx", {})
    if kind in _LIMITS:
        words, limit = _LIMITS[kind]
        return f"must be {words} {limits[limit]:,.10g}"
    if kind == "literal_error":
        return f"must be {limits['expected']}"
    if kind in ("model_type", "model_attributes_type"):
        return f"is a section: write [{problem['loc'][0]}] on a line of its own, and its settings below"
    return _PLAIN.get(kind, problem["msg"].removeprefix("Value error, "))


def _setting(where: Sequence[str]) -> list[str]:
    """The names down to the setting itself, and the place in a list; not which alternative of a type was tried."""
    kept = list(where[:1])
    if kept and _is_section(kept[0]):
        kept += where[1:2]
    return kept + [f"entry {int(part) + 1}" for part in where[len(kept) :] if part.isdecimal()]


def _is_section(name: str) -> bool:
    field = Settings.model_fields.get(name)
    return field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _known_keys(section: tuple[str, ...]) -> list[str]:
    fields = Settings.model_fields
    for name in section:
        annotation = fields[name].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        fields = annotation.model_fields
    return list(fields)

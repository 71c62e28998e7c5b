"""Models on this computer, which of them fit, and the choice of one.

The libraries that this takes are imported in a process of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.tui.management import aside
from desk_rag.tui.wording import count, gib

if TYPE_CHECKING:
    from desk_rag.config import Settings
    from desk_rag.model.library.fit import Fit, Machine
    from desk_rag.model.library.installed import Installed
    from desk_rag.settings_file import Key
    from desk_rag.tui.management.session import Session

EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that can be used, and how its weights are held."""

    name: str
    quantization: str = "none"


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in the list."""

    name: str
    source: str
    """'embedded', 'hub', 'Ollama', 'LM Studio' or 'folder'."""
    suits: bool
    verdict: str
    """Sentence on whether it fits, with the reason if it does not."""
    facts: str
    """Weights, memory for passages, disk for caches, licence."""
    quantization: str
    in_use: bool


@dataclass(frozen=True, slots=True)
class ModelsReport:
    """All models, those that suit first, and what they have to fit into."""

    machine: str
    rows: tuple[ModelRow, ...]
    is_final: bool = True
    """False until the speed of the models was measured."""


class ModelsView:
    """View of the models on this computer, to check and choose one. Methods may take seconds; none loads weights."""

    def __init__(self, session: Session, text_characters: int | None = None) -> None:
        """`text_characters` is the text to be indexed; without it, that of the index counts."""
        self._session = session
        self._text_characters = text_characters

    def reports(self) -> Iterator[ModelsReport]:
        """Yield every model, in the order in which they suit, and after some seconds again with their speed."""
        return aside.each(reports_of, self._session.settings, self._characters())

    def check(self, name: str) -> ModelChoice:
        """Return the choice of a model by name: 'embedded', a path, an Ollama name, or the hub name of a stored model.

        Raises ModelError for a model that is not here or not supported.
        """
        name = name.strip() or EMBEDDED
        if name == EMBEDDED:
            return ModelChoice(name)
        return aside.one(choice_of, name, self._session.settings, self._characters())

    def find(self, name: str) -> ModelChoice | None:
        """Return the choice of a model as `check` does; None for a name of the hub that is not on this computer."""
        from desk_rag.errors import ModelNotFound
        from desk_rag.model import weights

        try:
            return self.check(name)
        except ModelNotFound:
            if weights.is_hub_name(name.strip()) and not Path(name.strip()).exists():
                return None
            raise

    def cost(self) -> str:
        """Return what another model costs; '' if nothing is cached yet."""
        session = self._session
        store = session.store()
        counts = None if store is None else store.counts(session.namespace())  # type: ignore[arg-type]
        if counts is None or not counts.warm:
            return ""
        return (
            f"Caches belong to one model: {count(counts.warm, 'chunk cache')} would not be used by another. They stay "
            "until their room is needed, and caches for the new model are computed while the computer is idle; until "
            "then answers are slower."
        )

    def choose(self, choice: ModelChoice) -> str:
        """Write the choice to the settings file; return what was done. Raises ConfigError."""
        session = self._session
        model = session.settings.model
        changes: dict[Key, object] = {("model", "name"): choice.name}
        if choice.quantization != model.quantization:
            changes["model", "quantization"] = choice.quantization
        session.file.write(changes)
        session.changed.update(changes)
        if session.indexing is not None:
            return f"{choice.name} answers from the next start on."
        update = {"name": choice.name, "quantization": choice.quantization}
        session.settings = session.settings.model_copy(update={"model": model.model_copy(update=update)})
        return f"{choice.name} is chosen."

    def _characters(self) -> int:
        if self._text_characters is not None:
            return self._text_characters
        store = self._session.store()
        return 0 if store is None else store.text_characters()


# In the process beside this one ---------------------------------------------------------------------------------


def reports_of(settings: Settings, text_characters: int) -> Iterator[ModelsReport]:
    """Yield every model on this computer, in the order in which they suit, and again once speed was measured."""
    from desk_rag.model.library import installed
    from desk_rag.model.library.machine import measure, with_rates
    from desk_rag.model.loading import quiet_libraries

    quiet_libraries()
    machine = measure(settings, text_characters)
    models, in_use = installed.everything(), settings.model.name
    if all(model.name != in_use for model in models):
        models += _named(in_use)
    yield replace(_report(models, machine, in_use), is_final=False)
    yield _report(models, with_rates(machine, settings), in_use)


def _report(models: Sequence[Installed], machine: Machine, in_use: str) -> ModelsReport:
    from desk_rag.model.library import fit

    rows = [_row(each, machine, in_use) for each in fit.rank(models, machine)]
    rows += [_refused(model, in_use) for model in models if model.shape is None]
    rows.sort(key=lambda row: row.name != EMBEDDED)  # the choice that needs nothing stands first
    return ModelsReport(_described(machine), tuple(rows))


def choice_of(name: str, settings: Settings, text_characters: int) -> ModelChoice:
    """Return the choice of a model by name. Raises ModelError for one that is not here or not supported."""
    from desk_rag.model import directory_check, weights
    from desk_rag.model.library import fit
    from desk_rag.model.library.machine import measure

    expanded = str(Path(name).expanduser()) if name.startswith("~") else name
    model = settings.model.model_copy(update={"name": expanded})
    path = weights.resolve(expanded, allow_download=False)
    checked, _ = directory_check.check(path, model)
    directory_check.check_prompt(path, model, checked)
    if Path(expanded).exists():
        expanded = str(Path(expanded).absolute())
    ranked = fit.rank(_named(expanded), measure(settings, text_characters))
    return ModelChoice(expanded, (ranked[0].quantization if ranked else "") or "none")


def _named(name: str) -> list[Installed]:
    """Return a model outside the usual places as a list of one; empty if it does not exist."""
    from desk_rag.errors import ModelError
    from desk_rag.model import weights
    from desk_rag.model.library import installed

    try:
        return [installed.describe(name, "folder", weights.resolve(name, allow_download=False))]
    except ModelError as error:
        return [installed.Installed(name, "folder", None, 0, "", refusal=error.message)]


def _row(each: Fit, machine: Machine, in_use: str) -> ModelRow:
    model = each.model
    weights = ", ".join(f"{gib(size)} {'16 bit' if name == 'none' else name}" for name, size in each.weights.items())
    facts = [f"weights {weights}", f"memory for passages {gib(each.slab_bytes)}"]
    if machine.text_characters:
        facts.append(f"about {gib(each.folder_bytes)} of disk for this text")
    else:
        facts.append(f"{each.kv_bytes_per_token / 1024:.0f} KiB of disk per token")
    speeds = each.tokens_per_second
    if speed := speeds.get(each.quantization or "none", max(speeds.values(), default=0.0)):
        facts.append(f"about {speed:g} tokens per second")
    facts += [f"licence: {model.license}"] if model.license else []
    facts += [model.remark] if model.remark else []
    return ModelRow(
        model.name,
        model.source,
        each.suits,
        _verdict(each),
        " · ".join(facts),
        each.quantization or "none",
        model.name == in_use,
    )


def _refused(model: Installed, in_use: str) -> ModelRow:
    return ModelRow(model.name, model.source, False, "cannot be used", model.refusal, "none", model.name == in_use)


def _verdict(each: Fit) -> str:
    if each.model.refusal:
        return f"cannot be used: {each.model.refusal}"
    if not each.quantization:
        return "does not fit into memory"
    if not each.fits_budget:
        return "fits; its caches would exceed budget_gib, so a part of the text is kept warm"
    if each.model.name == EMBEDDED:
        return "fits; needs no download and no GPU"
    return "fits" if each.quantization == "none" else f"fits with {each.quantization} weights"


def _described(machine: Machine) -> str:
    memory = "no NVIDIA GPU"
    if machine.gpu_bytes:
        memory = f"{gib(machine.gpu_free_bytes)} of {gib(machine.gpu_bytes)} of GPU memory free"
    return f"{memory}, {gib(machine.ram_bytes)} of memory free, {gib(machine.budget_bytes)} of disk for caches"

"""Run `desk-rag models`: list what is on this machine, fit it to memory and disk, choose one, fetch one."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag import config
from desk_rag.cli import output as out
from desk_rag.cli.checks.stitching import stitching_costs
from desk_rag.cli.signals import stoppable
from desk_rag.cli.store_access import exists, open_store, print_lines
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, ModelError
from desk_rag.sanitize import clean, shown_path

if TYPE_CHECKING:
    from desk_rag.model.library.fit import Fit, Machine
    from desk_rag.model.library.installed import Installed
    from desk_rag.model.memory.plan import MemoryPlan

_KNOWN = (
    "Known to suit small machines because of few key-value heads: Qwen2.5-1.5B and 3B, Gemma 3 1B, SmolLM3 3B "
    "(desk-rag help models)."
)


@dataclass(frozen=True, slots=True)
class Task:
    """Options of `desk-rag models`."""

    name: str
    folders: tuple[Path, ...]
    config: Path | None
    """The settings file that was named."""
    sure: bool
    as_json: bool


def run(action: str, settings: Settings, task: Task) -> int:
    """Run one action and return its exit code. Raises ConfigError or ModelError."""
    if action in ("use", "download") and not task.name:
        raise ConfigError(f"Name a model: desk-rag models {action} NAME", remedy="`desk-rag models list` shows names.")
    return {"list": _list, "fit": _fit, "use": _use, "download": _download}[action](settings, task)


def _installed(settings: Settings, folders: tuple[Path, ...], name: str = "") -> list[Installed]:
    for folder in folders:
        if not folder.expanduser().is_dir():
            raise ConfigError(f"There is no directory {folder}.", remedy="Correct the path after --folder.")
    progress = out.Progress(sys.stderr)
    progress.passing("looking at the models on this machine …")  # torch and transformers take seconds to be imported
    from desk_rag.model import weights
    from desk_rag.model.library import installed
    from desk_rag.model.loading import quiet_libraries

    quiet_libraries()
    listed = installed.everything([folder.expanduser() for folder in folders])
    chosen = name or settings.model.name
    if all(model.name != chosen for model in listed) and (name or chosen != "embedded"):
        listed.append(installed.describe(chosen, "folder", weights.resolve(chosen, allow_download=False)))
    progress.clear()
    return listed


def _list(settings: Settings, task: Task) -> int:
    listed = _installed(settings, task.folders)
    if task.as_json:
        out.print_json(sys.stdout, {"models": [_as_json(model) for model in listed], "used": settings.model.name})
        return 0
    lines = []
    costs = {cost.model: cost.sentence for cost in stitching_costs(settings.data_dir)}
    for model in listed:
        mark = "*" if model.name == settings.model.name else " "
        shape = model.shape
        cache = f"{shape.kv_bytes_per_token / 1024:.1f} KiB per token" if shape else ""
        facts = [out.size(model.size) if model.size else "", model.form, cache, model.license]
        lines.append(
            f"{mark} {clean(model.name)}  [{model.source}]  {clean(', '.join(fact for fact in facts if fact))}"
        )
        if model.refusal:
            lines.append(f"    cannot be used: {clean(model.refusal)}")
        if model.remark:
            lines.append(f"    {clean(model.remark)}")
        if model.name in costs:
            lines.append(f"    {costs[model.name]}")
    print_lines(
        [*lines, "", "* is in use. `desk-rag models fit` compares them; `desk-rag models use NAME` chooses one."]
    )
    return 0


def _fit(settings: Settings, task: Task) -> int:
    from desk_rag.model.library import fit
    from desk_rag.model.library.machine import with_rates

    progress = out.Progress(sys.stderr)
    progress.passing("measuring this machine …")
    machine = with_rates(_machine(settings, task.folders[0] if task.folders else None), settings)
    progress.clear()
    installed = _installed(settings, (), task.name)
    ranked = fit.rank([model for model in installed if task.name in ("", model.name)], machine)
    if task.as_json:
        out.print_json(sys.stdout, {
            "machine": asdict(machine),
            "models": [{**_fit_as_json(each), "passages": _passages(each.model, settings)} for each in ranked],
        })  # fmt: skip
        return 0
    place = "no NVIDIA GPU"
    if machine.gpu_bytes:
        place = f"{out.size(machine.gpu_free_bytes)} of {out.size(machine.gpu_bytes)} of GPU memory free"
    lines = [
        f"This machine: {place}, {out.size(machine.ram_bytes)} of memory free, "
        f"{out.size(machine.budget_bytes)} of disk for caches.",
        f"Text: {machine.text_characters:,} characters." if machine.text_characters else
        "Text: nothing is indexed there yet, so the disk for its caches is not known (desk-rag index --no-kv FOLDER).",
        "",
    ]  # fmt: skip
    for each in ranked:
        lines += _fit_lines(each, machine, _passages(each.model, settings))
    basis = "from the memory rate of this GPU" if machine.gpu_bytes else "from products measured just now"
    print_lines([
        *lines, "", _KNOWN,
        f"Sizes are computed from the files' headers, disk at 4 characters per token"
        f" (embedded: 2.8), speed {basis}.",
        "`desk-rag bench model --model NAME` tries a model.",
    ])  # fmt: skip
    return 0


def _passages(model: Installed, settings: Settings) -> str:
    """Say how many passages its answers read; '' for a model that cannot be used, or whose window is not known."""
    from desk_rag.cli.checks.passages import passages_read
    from desk_rag.model.prompt import load_prompt

    if model.refusal or model.path is None or model.shape is None or not model.shape.window:
        return ""
    try:
        return passages_read(settings.answer, load_prompt(model.path), model.shape.window, model.name)
    except ModelError as error:
        return error.message


def _fit_lines(each: Fit, machine: Machine, passages: str) -> list[str]:
    if each.model.refusal:
        return [f"{clean(each.model.name)}: cannot be used: {clean(each.model.refusal)}"]
    weights = ", ".join(
        f"{out.size(size)} {'as they are' if name == 'none' else name}" for name, size in each.weights.items()
    )
    speed = ", ".join(
        f"{rate:g} ({'as they are' if name == 'none' else name})" for name, rate in each.tokens_per_second.items()
    )
    disk = f", about {out.size(each.folder_bytes)} of disk for this text" if machine.text_characters else ""
    license = f", licence: {clean(each.model.license)}" if each.model.license else ""
    return [
        f"{clean(each.model.name)}: {clean(_verdict(each))}",
        f"    weights {weights}; cache {each.kv_bytes_per_token:,} bytes per token{disk}{license}",
        *([f"    tokens of an answer per second, about: {speed}"] if speed else []),
        f"    {described(each.memory)}",
        *([f"    {clean(passages)}"] if passages else []),
    ]


def _verdict(each: Fit) -> str:
    if not each.suits:
        return "does not fit into memory" if not each.quantization else "its caches would exceed budget_gib"
    words = "suits" if each.quantization == "none" else f"suits with --quantization {each.quantization}"
    return words if each.memory.whole_context else f"{words}, with fewer passages in an answer"


def described(plan: MemoryPlan) -> str:
    """Return one line about a memory plan: what it takes of what is free, by part, and what follows from that."""
    parts = ", ".join(f"{name} {out.size(size)}" for name, size in plan.parts.items())
    line = f"{out.size(plan.total)} of {out.size(plan.device.free_bytes)} free {plan.device.name}: {parts}"
    if plan.page_locked:
        line += f"; input embeddings in page-locked RAM {out.size(plan.page_locked)}"
    if plan.fits and plan.lazy:
        line += "; passages stay in 8 bits"
    if plan.fits and not plan.whole_context:
        line += f"; room for {plan.context_tokens:,} tokens of passages"
    if plan.fits and plan.kept_chunks:
        line += f"; caches kept between answers up to {out.size(plan.kept_chunks)}"
    return line


def memory_needed(settings: Settings) -> tuple[str, str] | None:
    """Compare what the chosen model will take with what is free, before it is loaded.

    Returns a line, and a remedy if memory is short; None if the model's files cannot be read.
    """
    from desk_rag.model import weights
    from desk_rag.model.library import fit, installed
    from desk_rag.model.library.machine import measure
    from desk_rag.model.memory.plan import plan

    name = settings.model.name
    model = installed.describe(name, "", weights.resolve(name, allow_download=False))
    if model.shape is None:
        return None
    machine = measure(settings, 0)
    device = machine.device_for(model.shape.parameters)
    chosen = plan(model.shape, settings.model.quantization, device, lazy_possible=model.shape.full_attention)
    if chosen.fits and chosen.whole_context:
        return described(chosen), ""
    best = fit.fit(model, model.shape, machine)
    remedy = "Close other programs that use it, or take a smaller model (desk-rag models fit)."
    if best.quantization not in ("", settings.model.quantization):
        remedy = f"--quantization {best.quantization} takes {out.size(best.memory.total)}."
    return described(chosen) if chosen.fits else f"does not fit: {described(chosen)}", remedy


def _machine(settings: Settings, folder: Path | None) -> Machine:
    from desk_rag.model.library.machine import measure

    characters = 0
    if exists(settings):
        with open_store(settings, writer=False) as store:
            characters = store.text_characters(folder.expanduser().absolute() if folder else None)
    return measure(settings, characters)


def _use(settings: Settings, task: Task) -> int:
    """Write the choice to the settings file after all checks that need no weights to be loaded."""
    from desk_rag.model import directory_check, weights
    from desk_rag.model.loading import quiet_libraries
    from desk_rag.settings_file import Key, SettingsFile

    quiet_libraries()
    chosen = settings.model.model_copy(update={"name": task.name})
    if task.name != "embedded":
        path = weights.resolve(task.name, allow_download=False)
        checked, _ = directory_check.check(path, chosen)
        directory_check.check_prompt(path, chosen, checked)
        if Path(task.name).expanduser().exists():
            chosen = chosen.model_copy(update={"name": str(Path(task.name).expanduser().absolute())})
    file = SettingsFile(task.config or config.default_path())
    changes: dict[Key, object] = {("model", "name"): chosen.name}
    before = config.load(task.config).model.quantization
    if chosen.quantization == before:  # none was named on the command line
        chosen = chosen.model_copy(update={"quantization": _fitting(chosen.name, settings)})
    if chosen.quantization != before:
        changes["model", "quantization"] = chosen.quantization
    file.write(changes)
    if task.as_json:
        out.print_json(sys.stdout, {"used": chosen.name, "settings_file": str(file.path)})
    else:
        print_lines([
            f"From now on '{clean(chosen.name)}' answers ({shown_path(file.path)})"
            f"{f', with {chosen.quantization} weights' if chosen.quantization != 'none' else ''}.",
            "It has caches of its own: `desk-rag index` fills them, and those of the model before stay until the disk "
            "budget needs the room.",
        ])  # fmt: skip
    return 0


def _fitting(name: str, settings: Settings) -> str:
    """The least quantisation with which a model fits into memory now; 'none' if it fits with none or is not known."""
    from desk_rag.model import weights
    from desk_rag.model.library import fit, installed
    from desk_rag.model.library.machine import measure

    model = installed.describe(name, "", weights.resolve(name, allow_download=False))
    if model.shape is None:
        return "none"
    return fit.fit(model, model.shape, measure(settings, 0)).quantization or "none"


def _download(settings: Settings, task: Task) -> int:
    """Say what would be fetched, ask, and fetch it; what is there already is not fetched again."""
    from desk_rag.model.library import download

    offer = download.ask_hub(task.name)
    facts = {
        "name": offer.name, "bytes": offer.size, "missing_bytes": offer.missing, "license": offer.license,
        "gated": offer.gated, "free_bytes": offer.free, "cache": str(offer.cache),
    }  # fmt: skip
    if not task.as_json:
        print_lines([
            f"{clean(offer.name)}: {out.size(offer.size)}, {out.size(offer.missing)} of it not here yet; licence: "
            f"{clean(offer.license or 'not named')}{'; access must be granted' if offer.gated else ''}",
            f"It goes to {shown_path(offer.cache)}, where {out.size(offer.free)} are free.",
        ])  # fmt: skip
    download.check_room(offer)
    if offer.missing and not task.sure:
        if not sys.stdin.isatty():
            raise ConfigError("Nothing was fetched: there is nobody to ask.", remedy="Add --yes to agree beforehand.")
        sys.stdout.write("Fetch it now? [y/N] ")
        sys.stdout.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print_lines(["Nothing was fetched."])
            return 0
    line, progress = out.Progress(sys.stderr), download.Progress()
    with stoppable(lambda: line.passing("stopping; press Ctrl+C again to end at once …")) as stop:
        path = download.fetch(offer, lambda done, total: line.passing(progress.sentence(done, total)), stop)
    line.clear()
    if task.as_json:
        out.print_json(sys.stdout, {**facts, "path": str(path)})
    else:
        print_lines([f"It is in {shown_path(path)}. `desk-rag models use {clean(offer.name)}` chooses it."])
    return 0


def _as_json(model: Installed) -> dict[str, object]:
    fields = asdict(model)
    path = None if model.path is None else str(model.path)
    return {**fields, "path": path, "kv_bytes_per_token": model.shape and model.shape.kv_bytes_per_token}


def _fit_as_json(each: Fit) -> dict[str, object]:
    return {
        "name": each.model.name, "source": each.model.source, "suits": each.suits, "refusal": each.model.refusal,
        "quantization": each.quantization, "weights": each.weights,
        "tokens_per_second": dict(each.tokens_per_second), "slab_bytes": each.slab_bytes,
        "memory": {
            "parts": dict(each.memory.parts), "total": each.memory.total, "free": each.memory.device.free_bytes,
            "fits": each.memory.fits, "context_tokens": each.memory.context_tokens, "lazy": each.memory.lazy,
            "kept_chunks": each.memory.kept_chunks, "page_locked_ram": each.memory.page_locked,
        },
        "kv_bytes_per_token": each.kv_bytes_per_token, "folder_bytes": each.folder_bytes,
        "fits_budget": each.fits_budget, "license": each.model.license,
    }  # fmt: skip

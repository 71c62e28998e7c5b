"""Run `desk-rag doctor`: check the installation and name a remedy for each fault.

Checks files, packages and devices; loads no weights and changes nothing on disk. Model and embedder go through the same
checks as before an answer.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from desk_rag.cli import output as out
from desk_rag.cli.checks import data_directory as stored
from desk_rag.cli.checks.finding import Finding, Verdict
from desk_rag.config import AnswerSettings, ModelSettings, Settings
from desk_rag.errors import DeskRagError, told_to_user
from desk_rag.sanitize import clean, shown_path


def run(settings: Settings, *, as_json: bool) -> int:
    """Print all findings; 1 if one of them is a failure."""
    findings = list(examine(settings))
    failed = any(finding.verdict is Verdict.FAIL for finding in findings)
    if as_json:
        rows = [{"name": f.name, "verdict": f.verdict.value, "detail": f.detail,
                 "remedy": "" if f.verdict is Verdict.OK else f.remedy, **f.figures} for f in findings]  # fmt: skip
        out.print_json(sys.stdout, {"ok": not failed, "findings": rows})
        return int(failed)
    for finding in findings:
        sys.stdout.write(clean(f"{finding.verdict.value:<5} {finding.name:<14} {finding.detail}\n"))
        if finding.remedy and finding.verdict is not Verdict.OK:
            sys.stdout.write(clean(f"      {'':<14} {finding.remedy}\n"))
    return int(failed)


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks, in the order in which a fault would show."""
    checks: tuple[Callable[[Settings], Finding | list[Finding]], ...] = (
        *(_python, _torch, _gpu, _kernels, _quantization, _model, _memory, _adapter, _auxiliary, _rungs, _adaptation),
        *(_keys, _exclude, _embedder, _words, _vectors),
        *(stored.data_dir, stored.kv_dir, stored.disk, stored.index, stored.chats),
        *(stored.other_files, stored.notices, stored.cache_quality, stored.time_saved, _watches),
    )
    reported: set[str] = set()
    for check in checks:
        try:
            findings = check(settings)
            yield from findings if isinstance(findings, list) else [findings]
        except (DeskRagError, OSError) as error:
            known = told_to_user(error)
            if known is None:
                raise
            if known.message in reported:
                continue  # several checks open the store and meet the same fault
            reported.add(known.message)
            yield Finding(check.__name__.strip("_").replace("_", " "), Verdict.FAIL, known.message, known.remedy)


def _python(_settings: Settings) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", Verdict.OK, f"{version} on {sys.platform}")


def _torch(_settings: Settings) -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", Verdict.FAIL, "not installed", "Run the set-up again: make setup")
    return Finding("torch", Verdict.OK, version)


def _gpu(settings: Settings) -> Finding:
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        return Finding("gpu", Verdict.OK, f"{torch.cuda.get_device_name(0)}, {out.size(memory)}")
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if driver:
        cause = "this torch was built without CUDA" if torch.version.cuda is None else "torch cannot use it"
        remedy = "Install the build of torch that fits this machine (desk-rag help install)."
        verdict = Verdict.FAIL if settings.model.device == "cuda" else Verdict.WARN
        return Finding("gpu", verdict, f"an NVIDIA driver is installed, but {cause}", remedy)
    verdict = Verdict.FAIL if settings.model.device == "cuda" else Verdict.OK
    return Finding("gpu", verdict, "none; the model runs on the CPU", 'Take `device = "cuda"` out of the settings.')


def _kernels(_settings: Settings) -> Finding:
    from desk_rag.model.embedded import kernels

    return Finding("kernels", Verdict.OK, kernels.state())


def _quantization(settings: Settings) -> Finding:
    from desk_rag.model.loading import pick_device

    installed = importlib.util.find_spec("bitsandbytes") is not None
    kind = settings.model.quantization
    if kind != "none" and pick_device(settings.model).type == "cpu":
        return Finding("quantisation", Verdict.OK, f"'{kind}' on the CPU")
    if kind != "none" and not installed:
        detail = f"'{kind}' is set, but bitsandbytes is not installed"
        return Finding("bitsandbytes", Verdict.FAIL, detail, "pip install 'desk-rag[gpu]'")
    detail = "installed" if installed else "not installed; only needed for nf4 and int8 weights on a GPU"
    return Finding("bitsandbytes", Verdict.OK, detail)


def _model(settings: Settings) -> Finding:
    return Finding("model", Verdict.OK, _checked(settings.model, settings.answer))


def _memory(settings: Settings) -> list[Finding]:
    from desk_rag.cli.models import memory_needed

    needed = memory_needed(settings)  # None: the check of the model itself says why
    return [Finding("memory", Verdict.WARN if needed[1] else Verdict.OK, *needed)] if needed else []


def _auxiliary(settings: Settings) -> list[Finding]:
    """Check the auxiliary model if it is not the embedded one."""
    from desk_rag.answering.auxiliary import model_settings

    if settings.answer.auxiliary == "embedded":
        return []
    return [Finding("auxiliary", Verdict.OK, _checked(model_settings(settings, settings.answer.auxiliary)))]


def _checked(settings: ModelSettings, answers: AnswerSettings | None = None) -> str:
    """Run all checks that precede loading a model; return its name, size, directory and what `answers` read."""
    from desk_rag.model.weights import in_ollama, resolve, weight_files

    directory, remark = resolve(settings.name, allow_download=False), ""
    if settings.name != "embedded":
        from desk_rag.answering.context import passage_limit
        from desk_rag.cli.checks.passages import passages_read
        from desk_rag.model import directory_check
        from desk_rag.model.loading import quiet_libraries

        quiet_libraries()
        config, support = directory_check.check(directory, settings)
        prompt = directory_check.check_prompt(directory, settings, config)
        if answers is not None:
            passage_limit(answers, prompt, support.max_context, settings.name)  # raises as an answer would
            remark = f"; {passages_read(answers, prompt, support.max_context, settings.name)}"
        remark += f"; {prompt.reasoning.notice}" if prompt.reasoning.notice else ""
        if (model := in_ollama(settings.name)) is not None and model.unused:
            remark += f". {model.unused.removesuffix('.')}"
    total = sum(file.stat().st_size for file in weight_files(directory))
    return f"{settings.name}, {out.size(total)} in {shown_path(directory)}{remark}"


def _adapter(settings: Settings) -> list[Finding]:
    """Check the adapter if one is set."""
    from desk_rag.model import adapters

    if not settings.model.adapter:
        return []
    files = adapters.inspect(Path(settings.model.adapter))
    if importlib.util.find_spec("peft") is None:  # importing it would take seconds
        detail = "is set, but peft is not installed"
        return [Finding("adapter", Verdict.FAIL, detail, "pip install 'desk-rag[finetune]'")]
    return [Finding("adapter", Verdict.OK, f"LoRA in {shown_path(files.directory)}")]


def _rungs(settings: Settings) -> list[Finding]:
    """Check the cache variants (`rungs`) if there are several."""
    rungs = settings.model.rungs
    if len(rungs) == 1:
        return []
    detail = f"{', '.join(map(str, rungs))}: every chunk is prefilled and kept {len(rungs)} times, once for each"
    if settings.model.name == "embedded":
        remedy = "Take `rungs` out of the settings: the embedded reader was trained to do without."
        return [Finding("rungs", Verdict.WARN, detail, remedy)]
    top_k = settings.answer.top_k
    if 0 < top_k <= rungs[-1]:
        detail = f"{', '.join(map(str, rungs))}, but answers of `top_k` = {top_k} chunks have no place for the last"
        return [Finding("rungs", Verdict.WARN, detail, "Leave out the rungs from `top_k` on, or raise it.")]
    return [Finding("rungs", Verdict.OK, f"{detail}; a chunk counts as warm once the first is there")]


def _adaptation(settings: Settings) -> list[Finding]:
    """Say what stitching costs the model, as far as `desk-rag adapt` has measured it, and what was chosen."""
    from desk_rag.cli.checks.stitching import stitching_costs

    known = [each for each in stitching_costs(settings.data_dir) if each.model == settings.model.name]
    if known:
        return [Finding("stitching", Verdict.OK, each.sentence) for each in known]
    if settings.model.name == "embedded" or len(settings.model.rungs) > 1:
        return []
    detail = "what separately cached passages cost this model is not known"
    remedy = "desk-rag adapt measures it on your documents and makes up for it."
    return [Finding("stitching", Verdict.WARN, detail, remedy)]


def _keys(settings: Settings) -> list[Finding]:
    """Check the keys of the UI if some were chosen. Raises ConfigError, as the UI does."""
    from desk_rag.tui.keys.keymap import checked

    if not settings.ui.keys:
        return []
    checked(settings.ui.keys)
    return [Finding("keys", Verdict.OK, f"{out.plural(len(settings.ui.keys), 'key')} of the UI chosen")]


def _exclude(settings: Settings) -> list[Finding]:
    """Name patterns under `exclude` that cannot be obeyed."""
    from desk_rag.documents.rules.ignore_rules import OWN, compile_rules

    _, complaint = compile_rules(settings.index.exclude, OWN)
    remedy = "Correct them under [index] in the settings file; they are written as in .gitignore."
    return [Finding("exclude", Verdict.FAIL, complaint, remedy)] if complaint else []


def _embedder(settings: Settings) -> Finding:
    if settings.model.embedder != "embedded":
        from desk_rag.retrieval.embedding import check_directory

        offline = settings.model.model_copy(update={"allow_download": False})
        directory = check_directory(offline)
        return Finding("embedder", Verdict.OK, f"{settings.model.embedder} in {shown_path(directory)}")
    from desk_rag.retrieval.embedding import EMBEDDED_NAME, embedded_dir

    return Finding("embedder", Verdict.OK, f"{EMBEDDED_NAME} in {shown_path(embedded_dir())}")


def _words(_settings: Settings) -> Finding:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5 (text)")
    except sqlite3.OperationalError:
        detail = f"the SQLite of this Python ({sqlite3.sqlite_version}) cannot search for words"
        return Finding("word search", Verdict.FAIL, detail, "Use a Python whose sqlite3 has FTS5; python.org's does.")
    finally:
        connection.close()
    return Finding("word search", Verdict.OK, "ready")


def _vectors(_settings: Settings) -> Finding:
    installed = importlib.util.find_spec("hnswlib") is not None
    detail = "ready, for large folders too" if installed else "ready; the extra `ann` makes it faster in large folders"
    return Finding("vector search", Verdict.OK, detail)


def _watches(_settings: Settings) -> Finding:
    limit = Path("/proc/sys/fs/inotify/max_user_watches")
    if not limit.is_file():
        return Finding("watching", Verdict.OK, "by the operating system's own events")
    most = int(limit.read_text(encoding="ascii"))
    if most < 16384:
        remedy = "Larger trees are polled instead. To raise it: sudo sysctl fs.inotify.max_user_watches=524288"
        return Finding("watching", Verdict.WARN, f"only {most:,} folders can be watched", remedy)
    return Finding("watching", Verdict.OK, f"up to {most:,} folders")

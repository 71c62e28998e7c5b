"""Run `desk-rag adapt`: learn what stitching costs a model on the user's own passages, while the computer is idle."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desk_rag.cli import output as out
from desk_rag.cli.checks.stitching import closeness, less_likely
from desk_rag.cli.signals import INTERRUPTED, stoppable
from desk_rag.cli.store_access import exists, nothing_indexed
from desk_rag.cli.training.finetune import folder_chunks
from desk_rag.config import Settings
from desk_rag.errors import Cancelled, ConfigError, DeskRagError

if TYPE_CHECKING:
    from desk_rag.finetune.adapt.run import Outcome, Progress
    from desk_rag.kv.serving import ServingModel

_POLL = 0.5
_LINE_EVERY = 10.0


def adapt(settings: Settings, folders: Sequence[Path], *, now: bool, undo: bool, as_json: bool) -> int:
    """Learn, judge and store a shift for the model of these settings, or remove it. Raises DeskRagError subclasses."""
    if not exists(settings):
        return nothing_indexed(settings, as_json=as_json)
    if undo:
        return _undo(settings, as_json=as_json)
    if len(settings.model.rungs) > 1:
        raise ConfigError(
            "Cache variants (`rungs`) do the same at the cost of disk; a model takes one of the two.",
            remedy="Take `rungs` out of the settings first.",
        )
    from desk_rag.finetune.rules import make_samples

    samples = make_samples(folder_chunks(settings, folders), 0)
    if not samples:
        raise DeskRagError("No questions could be made from the documents.", remedy="Index a folder with prose in it.")
    screen = _Screen(out.Progress(sys.stderr))
    try:
        with stoppable(lambda: screen.say("stopping …")) as stop:
            outcome, stored = _learn(settings, samples, screen, _waiting(settings, screen, stop, now=now))
    except Cancelled:
        screen.say("Stopped. Nothing was changed; the next run starts from the beginning.")
        return INTERRUPTED
    screen.clear()
    if as_json:
        out.print_json(sys.stdout, outcome.as_json() | {"bytes": stored})
    else:
        sys.stdout.write(summary(outcome, stored))
    return 0


def _learn(
    settings: Settings, samples: Sequence[Any], screen: _Screen, before_context: Callable[[], None]
) -> tuple[Outcome, int]:
    from desk_rag.finetune.adapt.run import USUAL
    from desk_rag.finetune.adapt.run import adapt as learn
    from desk_rag.kv.shift import PlaceShift
    from desk_rag.store import adaptations

    screen.say("loading the model …")
    serving = _prepared(settings, pack=False)
    top_k = settings.answer.top_k or serving.model.prompt.top_k
    spec = serving.model.spec
    nothing = PlaceShift.zero(spec.num_layers, spec.num_kv_heads, spec.head_dim)
    screen.say(
        f"{USUAL.contexts} contexts are read twice each; what is learned takes {out.size(len(nothing.to_bytes({})))}, "
        "caches stay as they are."
    )
    outcome = learn(serving, samples, top_k=top_k, on_progress=screen.show, before_context=before_context)
    # A measurement that led to nothing is stored as well: `doctor` and `models` tell it.
    shift = outcome.shift or nothing
    facts = {"model": spec.name} | outcome.as_json()
    size = adaptations.write(settings.data_dir, serving.namespace, shift, facts)
    return outcome, size if outcome.shift is not None else 0


def _prepared(settings: Settings, *, pack: bool) -> ServingModel:
    from desk_rag.answering.serving_model import prepare_model
    from desk_rag.model.loading import load_model

    model = load_model(settings.model, pack=pack)
    serving = prepare_model(model, settings.data_dir, kv_dir=settings.store.kv_place)
    return replace(serving, shift=None)


def _undo(settings: Settings, *, as_json: bool) -> int:
    from desk_rag.store import adaptations

    namespace = _prepared(settings, pack=True).namespace
    removed = adaptations.remove(settings.data_dir, namespace)
    if as_json:
        out.print_json(sys.stdout, {"removed": removed})
    else:
        words = "is used as it is again, from the next start on" if removed else "was not adapted"
        sys.stdout.write(f"The model '{settings.model.name}' {words}.\n")
    return 0


def _waiting(settings: Settings, screen: _Screen, stop: Callable[[], bool], *, now: bool) -> Callable[[], None]:
    """Return a function that waits until the computer is idle and nobody waits for an answer."""
    from desk_rag.device_lock import DeviceLock
    from desk_rag.indexer.machine.idle import IdleGate, lower_priority

    lower_priority()
    gate, turn = IdleGate(settings.idle), DeviceLock(settings.data_dir / "run")
    gate.full_speed(now)

    def wait() -> None:
        while not stop():
            reason = "an answer is being made" if turn.answer_waits() else gate.may_run()
            if not reason:
                return
            screen.waiting(reason)
            time.sleep(_POLL)
        raise Cancelled("Stopped.")

    return wait


class _Screen:
    """Messages and the line of progress."""

    def __init__(self, progress: out.Progress) -> None:
        self._progress, self._last, self._reason = progress, 0.0, ""
        self._began, self._waited, self._contexts = time.monotonic(), 0.0, 0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._progress.say(text)

    def clear(self) -> None:
        """Take the passing line away."""
        self._progress.clear()

    def waiting(self, reason: str) -> None:
        """Say once why nothing is done."""
        self._waited += _POLL
        if reason.split(" (")[0] != self._reason:
            self._reason = reason.split(" (")[0]
            self._progress.say(f"waiting: {reason} (--now does not wait)")

    def show(self, event: Progress) -> None:
        """Show a context, on lines of their own every ten seconds."""
        self._reason, self._contexts = "", self._contexts + 1
        if event.done in (1, event.total) or time.monotonic() - self._last > _LINE_EVERY:
            self._last = time.monotonic()
            distance = "" if event.nats is None else f", full prefill's words {less_likely(event.nats)}"
            per_context = (time.monotonic() - self._began - self._waited) / self._contexts
            left = out.duration(per_context * max(0, event.contexts - self._contexts))
            self._progress.say(f"{event.stage}: {event.done} of {event.total} contexts{distance}; about {left} left")


def summary(outcome: Outcome, stored: int) -> str:
    """Describe an outcome: both measurements, the verdict, and what it took."""
    lines = [f"As it is: {_gap(outcome.before)}."]
    if outcome.after is not None:
        lines.append(f"With what was learned: {_gap(outcome.after)}.")
    lines.append(outcome.reason)
    if stored:
        lines.append(f"It takes {out.size(stored)} and changes no cache; used from the next start on.")
        lines.append("To take it back: desk-rag adapt --undo")
    memory = f", {outcome.device_mib / 1024:.1f} GiB of GPU memory" if outcome.device_mib else ""
    tokens = f"{outcome.contexts:,} contexts of {outcome.tokens // max(1, outcome.contexts):,} tokens on average"
    lines.append(f"{out.duration(outcome.seconds)}, {tokens}{memory}.")
    return "\n".join(lines) + "\n"


def _gap(gap: Any) -> str:
    return f"{closeness(gap.nats, gap.same)}; {out.plural(gap.canaries, 'built-in question')} answered"

"""The kinds of attack, each one function `(random, budget) -> Counts` that counts promises kept and broken."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.attack import forked
from tests.attack.churn import MARK, churning, kill_all
from tests.attack.counts import Budget, Counts, Skipped

REPOSITORY = Path(__file__).resolve().parents[2]
DISK_SIZES = ("200k", "360k", "900k", "1400k", "2500k", "5m")
FAULT = "fault of its own"
REBUILD_SECONDS = 900.0
"""Time for indexing everything once; a machine that needs more gives no result."""
_CUTS_PER_RUN = 500


@contextmanager
def folder() -> Iterator[Path]:
    """A place of its own, in memory where that can be."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="attack-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def command(data: Path, *words: str) -> list[str]:
    """The command line of the real program."""
    return [sys.executable, "-m", "desk_rag", "--data-dir", str(data), *words]


def environment() -> dict[str, str]:
    """One thread, nothing from the network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(REPOSITORY)}


def run(*words: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """A command, awaited."""
    return subprocess.run(
        words, cwd=REPOSITORY, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=timeout, check=False,
    )  # fmt: skip


def kills(chance: random.Random, budget: Budget) -> Counts:
    """SIGKILL of `index`, `watch` or a kept process at any instant while documents change and questions come.

    At the end the store is compared with one built anew. Half of the time is for that, which makes all chunk KV.
    """
    budget = Budget(budget.seconds / 2)
    counts = Counts()
    with folder() as place:
        documents, data = place / "documents", place / "data"
        documents.mkdir()
        for number in budget.rounds():
            _change(documents, chance, number)
            verb = chance.choice(("index", "watch", "ask"))
            words = (verb, str(documents)) if verb != "ask" else (verb, "--keep", "--private", "What costs 7 crowns?")
            changes = random.Random(chance.random())
            process = forked.start(("--data-dir", str(data), *words), {**environment(), MARK: str(data)})
            with churning(data, lambda n=number, c=changes: c.random() < 0.3 and _change(documents, c, n)) as churn:
                forked.wait_some(process, chance)
                counts.end(f"{verb} {'killed' if process.is_alive() else 'ended by itself'}")
                kill_all(process, data)
            counts.outcomes += churn.outcomes
            counts.violations += churn.violations
            if data.exists():
                counts.violations += [f"round {number}: {fault}" for fault in _unclean(data)]
        try:
            counts.violations += _differences(data, place / "rebuilt", documents)
        except subprocess.TimeoutExpired as late:
            counts.no_result.append(f"comparison with a store built anew: {too_slow(late)}")
    return counts


def _differences(data: Path, rebuilt: Path, documents: Path) -> list[str]:
    """Compare the store with one built anew. Raises TimeoutExpired if this machine is too slow to build it."""
    faults = []
    for target in (data, rebuilt):
        done = run(*command(target, "index", str(documents)), timeout=REBUILD_SECONDS)
        if done.returncode:
            faults.append(f"index ended with {done.returncode}: {done.stderr[-300:]}")
    # Many deletions at once wait for the user, as after a run of kills in which no look at the folder ended.
    run(*command(data, "deletions", "--confirm", str(documents)))
    run(*command(data, "index", str(documents)), timeout=REBUILD_SECONDS)
    content, anew = _content(data), _content(rebuilt)
    if content != anew:
        names = sorted(name for name in content.keys() | anew.keys() if content.get(name) != anew.get(name))
        one_sided = sorted(content.keys() ^ anew.keys())
        faults.append(f"the store differs from one built anew in {names}, of which one alone has {one_sided}")
    return faults


def too_slow(late: subprocess.TimeoutExpired) -> str:
    """Say that a command took too long, with the load of the machine."""
    load = f", load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else ""
    return f"not done after {late.timeout:.0f} s{load}"


def _change(documents: Path, chance: random.Random, number: int) -> None:
    for _ in range(chance.randrange(1, 4)):
        file = documents / f"note-{chance.randrange(12)}.md"
        if file.exists() and chance.random() < 0.25:
            file.unlink()
            continue
        lines = [f"Part {p} of round {number}: item {chance.randrange(1000)} costs {chance.randrange(500)} crowns."
                 for p in range(chance.randrange(1, 30))]  # fmt: skip
        file.write_text("\n\n".join(lines), encoding="utf-8")


def _unclean(data: Path) -> list[str]:
    from desk_rag.errors import DeskRagError
    from desk_rag.store.store import Store
    from tests.store import made

    try:
        with Store.open(data, made.settings(), writer=True) as store:
            return [problem.what for problem in store.verify().problems]
    except DeskRagError as error:
        return [f"does not open: {error}"]


def _content(data: Path) -> dict[str, list[tuple[str, str]]]:
    from desk_rag.store.store import Store
    from tests.store import made

    with Store.open(data, made.settings(), writer=False) as store:
        return {
            row.path.name: [(passage.chunk.chunk_id, passage.chunk.text) for passage in store.passages_of(row.path)]
            for row in store.documents()
        }


def kv_damage(chance: random.Random, budget: Budget) -> Counts:
    """KV files flipped, cut, extended, zeroed in part or exchanged: a miss, never other bytes."""
    from desk_rag.store.store import Store
    from tests.store import made

    counts = Counts()
    texts = [f"text {number}" for number in range(40)]
    with folder() as place, Store.open(place / "data", made.settings(), writer=True) as store:
        store.put_document(made.document(Path("/d/a"), texts), made.chunks(texts), made.stamp())
        for number in budget.rounds():
            for text in texts:
                if not store.has_kv([made.key(text)]):
                    store.put_kv(made.key(text), made.kv_for(made.key(text)), [made.chunk_id(text)], 0.5)
            file = chance.choice(made.kv_files(place / "data"))
            how = chance.choice(sorted(_DAMAGES))
            _DAMAGES[how](file, chance)
            got = store.get_kv([made.key(text) for text in texts])
            wrong = [t for t, kv in zip(texts, got, strict=True) if kv and not made.same(kv, made.kv_for(made.key(t)))]
            counts.end(f"{how}: {'other bytes' if wrong else 'a miss' if None in got else 'still right'}")
            counts.violations += [f"round {number}: {how} gave another KV for '{text}'" for text in wrong]
    return counts


def _flip(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def _cut(file: Path, chance: random.Random) -> None:
    os.truncate(file, chance.randrange(file.stat().st_size))


def _extend(file: Path, chance: random.Random) -> None:
    with file.open("ab") as opened:
        opened.write(chance.randbytes(chance.randrange(1, 9000)))


def _zero(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    start = chance.randrange(0, len(content), 512)
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    file.write_bytes(content)


def _exchange(file: Path, chance: random.Random) -> None:
    other = chance.choice(sorted(file.parent.parent.rglob("*.safetensors")))
    file.write_bytes(other.read_bytes())


_DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "bit flipped": _flip, "cut": _cut, "extended": _extend, "block of zeros": _zero, "exchanged": _exchange,
}  # fmt: skip


def power_cuts(chance: random.Random, budget: Budget) -> Counts:
    """States that a power cut may leave of a recorded run, each opened and held against what was reported done."""
    from tests.durability.judging import judge
    from tests.durability.power_cut import sample
    from tests.durability.recording import CannotRecord, Job, record

    counts = Counts()
    with folder() as place:
        for number in budget.rounds():
            try:
                (ops,) = record([Job(chance.randrange(1 << 30), 60)], place / f"run{number}")
            except CannotRecord as error:
                raise Skipped(str(error)) from error
            states = sample(ops, chance.randrange(1 << 30), _CUTS_PER_RUN)
            for (state, before), _ in zip(states, budget.rounds(), strict=False):
                faults = judge(state, before, place / "state")
                counts.end("promises broken" if faults else "all promises kept")
                counts.violations += [f"run {number}, {state.cut} operations, {state.how}: {f}" for f in faults]
    return counts


def disks(chance: random.Random, budget: Budget) -> Counts:
    """Drives that are full at some size: refused in words, nothing half written, whole once there is room."""
    return _in_namespace("full_disk", chance, budget, DISK_SIZES)


def mounts(chance: random.Random, budget: Budget) -> Counts:
    """Somebody else's folder mounted inside the data directory: not a file of it is touched."""
    return _in_namespace("foreign_mount", chance, budget, ("kv", "vectors", "quarantine", "models", "logs"))


def _in_namespace(program: str, chance: random.Random, budget: Budget, choices: tuple[str, ...]) -> Counts:
    """Run a program of this folder with mounts of its own, again and again; its last line is the outcome."""
    unshare = shutil.which("unshare")
    if unshare is None or run(unshare, "-rm", "true").returncode:
        raise Skipped("mount namespaces are not allowed here")
    counts = Counts()
    for number in budget.rounds():
        choice = chance.choice(choices)
        seed = str(chance.randrange(1 << 30))
        with folder() as place:
            try:
                done = run(unshare, "-rm", sys.executable, "-m", f"tests.attack.{program}", str(place), choice, seed)
            except subprocess.TimeoutExpired as late:
                counts.end(f"{choice}: no result")
                counts.no_result.append(f"round {number}, {choice}, seed {seed}: {too_slow(late)}")
                continue
        last = (done.stdout.strip().splitlines() or [""])[-1]
        counts.end(f"{choice}: {last.split(':')[0] if not done.returncode else 'broken'}")
        if done.returncode:
            counts.violations.append(f"round {number}, {choice}, seed {seed}: {(last or done.stderr[-400:]).strip()}")
    return counts


def files(chance: random.Random, budget: Budget) -> Counts:
    """Hostile documents and names: each ends as a named state, and the harmless file beside it is found."""
    from desk_rag.store.store import Store
    from tests.attack.hostile_files import HOSTILE
    from tests.store import made

    counts = Counts()
    for number in budget.rounds():
        with folder() as place:
            documents = place / "documents"
            documents.mkdir()
            chosen = chance.sample(sorted(HOSTILE), 3)
            for name in chosen:
                HOSTILE[name](documents, chance)
            (documents / "plain.md").write_text("The harmless heron wades here.", encoding="utf-8")
            began = time.monotonic()
            try:
                done = run(*command(place / "data", "index", "--no-kv", str(documents)), timeout=420)
            except subprocess.TimeoutExpired:
                counts.end("no end")
                counts.violations.append(f"round {number}, {chosen}: no end within 420 s")
                continue
            counts.end("within a minute" if time.monotonic() - began < 60 else "within seven")
            if FAULT in done.stdout + done.stderr or "Traceback" in done.stderr:
                counts.violations.append(f"round {number}, {chosen}: {done.stderr[-300:]}")
                continue
            with Store.open(place / "data", made.settings(), writer=False) as store:
                if not store.search_words("harmless heron", 3):
                    counts.violations.append(f"round {number}, {chosen}: the harmless file was not indexed")
    return counts


def catalog(chance: random.Random, budget: Budget) -> Counts:
    """The catalog damaged (tests/store/catalog/catalog_damage.py): never another answer without a word."""
    return _counted(
        "tests.store.catalog.catalog_damage", chance, budget, {"silent", "untrue", "leak", "crash", "lost", "kv lost"}
    )


def models(chance: random.Random, budget: Budget) -> Counts:
    """Hostile model directories (tests/model/hostile_models.py): each refused in words, none of their code run."""
    if find_spec("tests.model.hostile_models") is None:
        raise Skipped("tests/model/hostile_models.py is not in this tree")
    from desk_rag.errors import ModelError

    hostile = import_module("tests.model.hostile_models")
    counts = Counts()
    for _ in budget.rounds():
        name = chance.choice(hostile.names())
        with folder() as place:
            directory = hostile.build(name, place / "given")
            settings = directory.settings()
            try:
                if directory.kind == "embedder":
                    import_module("desk_rag.retrieval.embedding").load_embedder(settings)
                else:
                    import_module("desk_rag.model.loading").load_model(settings)
                counts.end("accepted")
                counts.violations.append(f"{name} was accepted")
            except ModelError:
                counts.end("refused")
            except Exception as error:  # anything else is a fault of the program's own
                counts.end(FAULT)
                counts.violations.append(f"{name}: {type(error).__name__}: {error}")
            if directory.executed.exists():
                counts.violations.append(f"{name}: its code was run")
    return counts


def links(chance: random.Random, budget: Budget) -> Counts:
    """Planted links, hard links and foreign files on every deleting path
    (tests/store/maintenance/test_foreign_files.py)."""
    if not (REPOSITORY / "tests/store/maintenance/test_foreign_files.py").exists():
        raise Skipped("tests/store/maintenance/test_foreign_files.py is not in this tree")
    done = run(sys.executable, "-m", "pytest", "-q", "-x", "tests/store/maintenance/test_foreign_files.py", timeout=900)
    lines = done.stdout.strip().splitlines() or ["no output"]
    counts = Counts(rounds=1)
    counts.outcomes["broken" if done.returncode else "nothing foreign touched"] += 1
    if done.returncode:
        failed = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), lines[-1])
        why = [line for line in lines if line.startswith((">", "E  "))][:4]
        counts.violations.append("\n".join([failed, *why]))
    return counts


def _counted(module: str, chance: random.Random, budget: Budget, wrong: set[str]) -> Counts:
    """Rounds of a module that has `attack(seed, rounds) -> Counter`."""
    if find_spec(module) is None:
        raise Skipped(f"{module.replace('.', '/')}.py is not in this tree")
    attack = import_module(module).attack
    counts = Counts()
    for _ in budget.rounds():
        seed = chance.randrange(1 << 30)
        outcomes = attack(seed, 20)
        counts.rounds += 20
        counts.outcomes += outcomes
        counts.violations += [f"seed {seed}: {kind} {outcomes[kind]} times" for kind in sorted(wrong & outcomes.keys())]
    return counts


KINDS: dict[str, Callable[[random.Random, Budget], Counts]] = {
    "kills": kills,
    "flips": kv_damage,
    "catalog": catalog,
    "power": power_cuts,
    "disks": disks,
    "links": links,
    "mounts": mounts,
    "files": files,
    "models": models,
}

"""The states that a power cut may leave of a recorded run, after ALICE (Pillai et al., OSDI 2014).

What was flushed is there. Of the rest, any part may be there: of a file's data any sectors of 512 bytes, with zeros
where the size is there and the data is not; of a directory's names any change, in any order but that of two changes
to one name. A rename is one step, made durable by a flush of either directory. A flush of a file says nothing of its
name.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.durability.recording import Op

SECTOR = 512
REPORTS = {"put", "removed", "renamed", "vectors", "warm", "recorded", "purged"}
"""Remarks that something is done; the moment right after one is the most telling."""


@dataclass(slots=True)
class _Node:
    """A file or directory: what of it is durable, and what is owed."""

    directory: bool
    durable: bytearray = field(default_factory=bytearray)
    names: dict[str, int] = field(default_factory=dict)
    """Entries of a directory, as the process sees it."""
    owed: list[Op] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Naming:
    """One change of names, owed until a directory it touches is flushed."""

    serial: int
    removes: tuple[int, str] | None
    adds: tuple[int, str, int] | None
    """Directory, name, node."""
    directories: frozenset[int]


@dataclass(frozen=True, slots=True)
class State:
    """Content of the drive after one cut, and the place of the cut."""

    cut: int
    """Operations that had been done."""
    how: str
    directories: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]

    @property
    def digest(self) -> bytes:
        """The same for the same content."""
        whole = hashlib.blake2b(repr(self.directories).encode(), digest_size=16)
        for path, content in self.files:
            whole.update(repr((path, len(content))).encode())
            whole.update(content)
        return whole.digest()

    def write(self, root: Path) -> None:
        """Put the state at `root`, whatever was there."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(mode=0o700)
        for directory in self.directories:
            (root / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content in self.files:
            descriptor = os.open(root / path, os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)


class Drive:
    """A drive with a write cache, fed with operations one by one."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {0: _Node(directory=True)}
        self._by_inode: dict[int, int] = {}
        self._durable_names: dict[tuple[int, str], int] = {}
        self._owed_names: list[_Naming] = []
        self._serial = 0
        self.done = 0

    def apply(self, op: Op) -> None:
        """Take one operation."""
        self.done += 1
        if op.kind in "WTF":
            self._to_node(op)
        elif op.kind in "CM":
            number = self._new(op.inode, directory=op.kind == "M")
            self._name(None, (*self._place(op.path), number))
        elif op.kind == "L":
            self._name(None, (*self._place(op.path), self._by_inode[op.inode]))
        elif op.kind == "U":
            self._name(self._place(op.path), None)
        elif op.kind == "R":
            directory, name = self._place(op.path)
            self._name((directory, name), (*self._place(op.target), self._nodes[directory].names[name]))

    def know_root(self, inode: int) -> None:
        """The inode of the recorded directory itself, so that its flushes are known."""
        self._by_inode[inode] = 0

    def cuts(self, rng: random.Random, samples: int) -> Iterator[State]:
        """Yield the telling states at this moment, then `samples` drawn ones."""
        names = [naming.serial for naming in self._owed_names]
        every, none = frozenset(names), frozenset[int]()
        yield self._state("nothing owed is there", none, _Data("none", rng))
        yield self._state("all is there", every, _Data("all", rng))
        yield self._state("names without data", every, _Data("none", rng))
        yield self._state("names and sizes, zeros for data", every, _Data("zeros", rng))
        yield self._state("data without names", none, _Data("all", rng))
        if len(names) > 1:
            last = frozenset(names[-1:])
            yield self._state("the last name alone", last, _Data("all", rng))
            yield self._state("all names but the first", every - frozenset(names[:1]), _Data("all", rng))
        for _ in range(samples):
            chosen = frozenset(name for name in names if rng.random() < rng.choice((0.2, 0.5, 0.8)))
            kind = rng.choice(("all", "prefix", "torn", "torn", "zeros", "mixed"))
            yield self._state(f"drawn, {kind}", chosen, _Data(kind, rng))

    def _new(self, inode: int, *, directory: bool) -> int:
        number = len(self._nodes)
        self._nodes[number] = _Node(directory)
        self._by_inode[inode] = number
        return number

    def _place(self, path: str) -> tuple[int, str]:
        node = 0
        *parents, name = Path(path).parts
        for part in parents:
            node = self._nodes[node].names[part]
        return node, name

    def _name(self, removes: tuple[int, str] | None, adds: tuple[int, str, int] | None) -> None:
        if removes is not None:
            self._nodes[removes[0]].names.pop(removes[1], None)
        if adds is not None:
            self._nodes[adds[0]].names[adds[1]] = adds[2]
        touched = frozenset(place[0] for place in (removes, adds) if place is not None)
        self._serial += 1
        self._owed_names.append(_Naming(self._serial, removes, adds, touched))

    def _to_node(self, op: Op) -> None:
        number = self._by_inode.get(op.inode)
        if number is None:
            return
        node = self._nodes[number]
        if op.kind != "F":
            node.owed.append(op)
            return
        if not node.directory:
            for owed in node.owed:
                _apply(node.durable, owed)
            node.owed.clear()
            return
        for naming in self._owed_names:
            if number in naming.directories:
                _rename(self._durable_names, naming)
        self._owed_names = [naming for naming in self._owed_names if number not in naming.directories]

    def _state(self, how: str, chosen: frozenset[int], data: _Data) -> State:
        names = dict(self._durable_names)
        for naming in self._owed_names:
            if naming.serial in chosen:
                _rename(names, naming)
        directories: list[str] = []
        files: list[tuple[str, bytes]] = []
        below: dict[int, list[tuple[str, int]]] = {}
        for (directory, name), node in names.items():
            below.setdefault(directory, []).append((name, node))
        waiting = [("", 0)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, number in sorted(below.get(directory, ())):
                path, node = prefix + name, self._nodes[number]
                if node.directory:
                    directories.append(path)
                    waiting.append((f"{path}/", number))
                else:
                    files.append((path, data.of(node)))
        return State(self.done, how, tuple(sorted(directories)), tuple(sorted(files)))


class _Data:
    """Unflushed data that is on the drive after a cut."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self._kind, self._rng = kind, rng

    def of(self, node: _Node) -> bytes:
        if not node.owed:
            return bytes(node.durable)
        rng = self._rng
        kind = rng.choice(("none", "all", "prefix", "torn", "zeros")) if self._kind == "mixed" else self._kind
        content = bytearray(node.durable)
        cut = rng.randrange(len(node.owed) + 1) if kind == "prefix" else len(node.owed)
        for index, op in enumerate(node.owed):
            if kind == "none" or index > cut:
                break
            if op.kind == "T":
                if kind != "torn" or rng.random() < 0.5:
                    _apply(content, op)
            elif kind == "all" or (kind == "prefix" and index < cut):
                _apply(content, op)
            elif kind == "zeros":
                _grow(content, op.number + len(op.data))
            else:
                _torn(content, op, rng, first_only=kind == "prefix")
        return bytes(content)


def _torn(content: bytearray, op: Op, rng: random.Random, *, first_only: bool) -> None:
    """Some sectors of a write: the first ones, or any."""
    edges = [op.number, *range(-(-(op.number + 1) // SECTOR) * SECTOR, op.number + len(op.data), SECTOR)]
    kept = rng.randrange(len(edges) + 1)
    share = rng.choice((0.1, 0.5, 0.9))
    for index, start in enumerate(edges):
        end = edges[index + 1] if index + 1 < len(edges) else op.number + len(op.data)
        if index < kept if first_only else rng.random() < share:
            _grow(content, end)
            content[start:end] = op.data[start - op.number : end - op.number]


def _grow(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _apply(content: bytearray, op: Op) -> None:
    if op.kind == "T":
        del content[op.number :]
        _grow(content, op.number)
    else:
        _grow(content, op.number + len(op.data))
        content[op.number : op.number + len(op.data)] = op.data


def _rename(names: dict[tuple[int, str], int], naming: _Naming) -> None:
    if naming.removes is not None:
        names.pop(naming.removes, None)
    if naming.adds is not None:
        names[naming.adds[:2]] = naming.adds[2]


def sample(
    ops: Sequence[Op], seed: int, count: int, *, only_reports: bool = False
) -> Iterator[tuple[State, Sequence[Op]]]:
    """Yield about `count` different states, spread over the run by `seed`, each with the operations before it.

    `only_reports`: all of them right after something was reported done.
    """
    rng = random.Random(seed)
    weights = [
        0.0 if only_reports and op.kind != "N" else weight for op, weight in zip(ops, _weights(ops), strict=True)
    ]
    per_weight = count / sum(weights)
    seen: set[tuple[bytes, int]] = set()
    notes = 0
    drive = Drive()
    drive.know_root(next(op.note["root_inode"] for op in ops if op.kind == "N" and "root_inode" in op.note))
    credit = rng.random()
    for index, op in enumerate(ops):
        notes += op.kind == "N"
        drive.apply(op)
        credit += per_weight * weights[index]
        if credit < 1:
            continue
        states = list(drive.cuts(rng, max(1, round(credit))))
        rng.shuffle(states)
        for state in states:
            if credit < 1:
                break
            if (state.digest, notes) not in seen:  # the same content is another case once more was reported done
                seen.add((state.digest, notes))
                credit -= 1
                yield state, ops[: index + 1]


def _weights(ops: Sequence[Op]) -> Iterator[float]:
    """Weigh the cuts after each operation; pages of the catalog are many and alike."""
    catalog: set[int] = set()
    for op in ops:
        if op.kind == "C":
            (catalog.add if "catalog" in op.path else catalog.discard)(op.inode)
        if op.kind == "N":
            yield 1.0 if op.note.keys() & REPORTS else 0.0
        else:
            yield 0.15 if op.kind == "W" and op.inode in catalog else 1.0

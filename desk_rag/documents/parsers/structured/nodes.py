"""Write trees of keys and values as lines that each carry their keys: 'database.port: 5432'.

A list element that is small becomes one row, 'members: name: Ida; phone: 555-0142', as a row of a table would. Long
texts become paragraphs below a heading of their keys. Trees are walked without recursion: files may be nested deeply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, row_text

_DEEPEST_PATH = 8
"""Keys of a path that are written; of deeper ones the innermost."""
_MOST_ROW_CHARS = 400
_MOST_ROW_VALUES = 24
"""Characters and values of a list element that becomes one row."""
_MOST_ROW_NODES = 4 * _MOST_ROW_VALUES
_LONG_TEXT = 400
_LONGEST_WORD = 200
"""Characters of a word from which it is taken for encoded data, and cut."""
_LABEL_KEYS = ("name", "title", "id", "key", "label")


@dataclass(slots=True)
class Node:
    """A value with its key: text, or a list of further nodes."""

    key: str
    first: int
    """1-based line on which it begins."""
    last: int
    value: str = ""
    children: list[Node] = field(default_factory=list)
    is_item: bool = False
    """True for an element of a list."""
    is_verbatim: bool = False
    """True if the line ends in `value` are meant, as in a script."""


def add_nodes(builder: Builder, root: Node, comments: Sequence[tuple[int, str]] = ()) -> None:
    """Append the values below `root`; comments, (line, text) in order, stand where they stand in the file."""
    pending_comments = list(reversed(comments))
    pending = [(child, ()) for child in reversed(root.children)]  # type: list[tuple[Node, tuple[str, ...]]]
    while pending:
        node, outer = pending.pop()
        while pending_comments and pending_comments[-1][0] <= node.first:
            _add_comment(builder, *pending_comments.pop())
        row = _row(node) if node.is_item else None
        if node.children and row is None:
            path = _extended(outer, _labelled(node))
            if not outer and node.key:
                builder.section((node.key,))
            if items := _plain_items(node):
                _add_items(builder, path, items)
            else:
                pending.extend((child, path) for child in reversed(node.children))
            continue
        if not outer:
            builder.section(())
        _add_value(builder, _extended(outer, node.key), node, row)
    for comment in reversed(pending_comments):
        _add_comment(builder, *comment)


def _add_comment(builder: Builder, line: int, text: str) -> None:
    builder.add(text, BlockKind.PARAGRAPH, Lines(line, line))


def _add_value(builder: Builder, path: tuple[str, ...], node: Node, row: str | None) -> None:
    name = ".".join(path)
    lines = Lines(node.first, _last_line(node))
    text = row if row is not None else _without_data(node.value)
    if node.children or not (node.is_verbatim or len(text) > _LONG_TEXT):
        words = " ".join(text.split())
        builder.add(f"{name}: {words}" if name and words else name or words, BlockKind.TABLE, lines)
        return
    before = builder.path
    builder.section((*path[:1], name) if len(path) > 1 else path)
    if node.is_verbatim:
        builder.add(node.value, BlockKind.CODE, Lines(node.first + 1, node.last))
    else:
        for paragraph in text.split("\n\n"):
            builder.add(" ".join(paragraph.split()), BlockKind.PARAGRAPH, lines)
    builder.section(before)


def _add_items(builder: Builder, path: tuple[str, ...], items: Sequence[Node]) -> None:
    """Add a list of plain values, several to a row."""
    row: list[Node] = []
    name = ".".join(path)
    for item in [*items, None]:
        if row and (item is None or sum(len(each.value) for each in row) + len(item.value) > _MOST_ROW_CHARS):
            values = ", ".join(" ".join(_without_data(each.value).split()) for each in row)
            text = f"{name}: {values}" if name else values
            builder.add(text, BlockKind.TABLE, Lines(row[0].first, row[-1].last))
            row = []
        if item is not None:
            row.append(item)


def _plain_items(node: Node) -> list[Node]:
    """Return the elements of a list of plain values; nothing for other nodes."""
    plain = all(child.is_item and not child.children and not child.key for child in node.children)
    return node.children if plain else []


def _labelled(node: Node) -> str:
    """Return the key of a node; of a list element with its name or number: 'members[Ida]'."""
    if not node.is_item:
        return node.key
    scalars = {child.key: child.value for child in node.children if child.value and not child.children}
    label = next((scalars[key] for key in _LABEL_KEYS if len(scalars.get(key, "")) in range(1, 60)), "")
    return f"{node.key}[{label}]" if label else node.key


def _row(node: Node) -> str | None:
    """Return a small element as 'name: Ida; address.city: Ribe'; None if it has no parts or is not small."""
    if not node.children:
        return None
    keys: list[str] = []
    values: list[str] = []
    length = 0
    for path, leaf in _leaves(node):
        if leaf is None:
            return None
        text = _without_data(leaf.value)
        length += len(path) + len(text)
        if length > _MOST_ROW_CHARS or len(keys) >= _MOST_ROW_VALUES or leaf.is_verbatim:
            return None
        if keys and keys[-1] == path and leaf.is_item:
            values[-1] += f", {text}"
        else:
            keys.append(path)
            values.append(text)
    return row_text(keys, values)


def _leaves(node: Node) -> Iterator[tuple[str, Node | None]]:
    """Yield the values below a node with their keys relative to it; at last None if it is too large for a row."""
    seen = 0
    pending = [(child, ()) for child in reversed(node.children)]  # type: list[tuple[Node, tuple[str, ...]]]
    while pending:
        child, outer = pending.pop()
        path = _extended(outer, child.key)
        seen += 1
        if seen + len(child.children) > _MOST_ROW_NODES:
            yield "", None
            return
        if child.children:
            pending.extend((inner, path) for inner in reversed(child.children))
        else:
            yield ".".join(path), child


def _extended(path: tuple[str, ...], key: str) -> tuple[str, ...]:
    return (*path, key)[-_DEEPEST_PATH:] if key else path


def _last_line(node: Node) -> int:
    last = node.last
    while node.children:
        node = node.children[-1]
        last = max(last, node.last)
    return last


def _without_data(text: str) -> str:
    """Return a text with words too long to be words, such as encoded pictures, cut."""
    if len(text) <= _LONGEST_WORD:
        return text
    return " ".join(
        word if len(word) <= _LONGEST_WORD else word[: _LONGEST_WORD // 4] + "…" for word in text.split(" ")
    )

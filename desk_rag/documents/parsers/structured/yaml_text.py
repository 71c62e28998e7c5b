"""Parse YAML: lines that carry their keys, with the comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup import code
from desk_rag.documents.parsers.structured.nodes import Node, add_nodes

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COMMENT = re.compile(r"\s*(?P<text>#.*)$")
_MOST_NODES = 500_000
_DEEPEST = 100
"""Bounds on what aliases unfold to."""


def parse(text: str, note: str = "") -> Parsed:
    """Lines that carry their keys. A text that is no YAML, such as a template, is read as code."""
    lines = text.split("\n")
    try:
        root = _tree(text, lines)
    except (yaml.YAMLError, RecursionError, ValueError):
        return code.parse(text, note)
    if all(not child.key and not child.children for child in root.children):
        return code.parse(text, note)  # a plain text
    builder = Builder()
    builder.set_title(code.opening_comment(lines))
    add_nodes(builder, root, list(_comments(lines, root)))
    return builder.done(note)


def _tree(text: str, lines: list[str]) -> Node:
    root = Node("", 1, 1)
    documents = [document for document in yaml.compose_all(text, Loader=_LOADER) if document is not None]
    pending = [(document, "", len(documents) > 1, root, 0) for document in reversed(documents)]
    count = 0
    while pending:
        source, key, is_item, parent, depth = pending.pop()
        count += 1
        if count > _MOST_NODES or depth > _DEEPEST:
            raise ValueError("unfolds to too much")
        begin, end = source.start_mark, source.end_mark
        # A text over several lines ends in front of the line that follows it.
        last = end.line + 1 if end.column > 0 or end.line == begin.line else end.line
        is_text = isinstance(source, yaml.ScalarNode)
        node = Node(key, begin.line + 1, last if is_text else begin.line + 1, is_item=is_item)
        parent.children.append(node)
        if isinstance(source, yaml.MappingNode):
            inner = [(value, key, False, node, depth + 1) for key, value in _pairs(source)]
        elif isinstance(source, yaml.SequenceNode):
            inner = [(value, "", True, node, depth + 1) for value in source.value]
        else:
            node.value = source.value + _comment_behind(lines, source)
            node.is_verbatim = source.style == "|" and "\n" in source.value.strip("\n")
            continue
        pending.extend(reversed(inner))
    return root


def _pairs(source: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    """Yield keys and values; those that are merged in ('<<: *defaults') stand in the place of the mark."""
    own = {_key(name) for name, _ in source.value}
    for name, value in source.value:
        if _key(name) == "<<" and isinstance(value, yaml.MappingNode):
            yield from ((_key(inner), given) for inner, given in value.value if _key(inner) not in own)
        else:
            yield _key(name), value


def _key(node: yaml.Node) -> str:
    return node.value if isinstance(node.value, str) else "?"


def _comment_behind(lines: list[str], source: yaml.ScalarNode) -> str:
    """Return the comment behind a value of one line, ' # like this'."""
    mark = source.end_mark
    if mark.line != source.start_mark.line or mark.line >= len(lines) or source.style in ("|", ">"):
        return ""
    comment = _COMMENT.fullmatch(lines[mark.line], mark.column)
    return f" {comment['text']}" if comment else ""


def _comments(lines: list[str], root: Node) -> Iterator[tuple[int, str]]:
    """Yield the lines that are comments, and not part of a text."""
    inside: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(node.children)
        if node.value and node.last > node.first:
            inside.update(range(node.first, node.last + 1))
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("#") and number not in inside:
            yield number, line.strip()

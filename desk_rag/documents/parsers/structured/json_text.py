"""Parse JSON and its relatives: one value a line (.jsonl), comments (.json5, .jsonc).

Read here because the standard library's parser knows no lines, and nothing of a file that is cut off.
"""

from __future__ import annotations

import json
import re

from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup import code
from desk_rag.documents.parsers.structured.nodes import Node, add_nodes

_TOKEN = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"|\'[^\'\\\n]*(?:\\.[^\'\\\n]*)*\''  # strings
    r'|//[^\n]*|/\*.*?\*/|[{}\[\]:,]|[^\s{}\[\]:,"]+|"',
    re.DOTALL,
)


def parse(text: str, note: str = "") -> Parsed:
    """Lines that carry their keys. A text that is no JSON is read as code."""
    try:
        root, comments = _Reader(text).read()
    except ValueError:
        return code.parse(text, note)
    builder = Builder()
    add_nodes(builder, root, comments)
    return builder.done(note)


class _Reader:
    """Builds the tree of one text, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._line = 1
        self._open = [(Node("", 1, 1), "")]
        """Open containers, each with the bracket that closes it."""
        self._key: str | None = None
        self._has_colon = False

    def read(self) -> tuple[Node, list[tuple[int, str]]]:
        """Return the tree and the comments. Raises ValueError for a text that is no JSON."""
        comments: list[tuple[int, str]] = []
        last = 0
        for match in _TOKEN.finditer(self._text):
            self._line += self._text.count("\n", last, match.start())
            last = match.start()
            token = match[0]
            if token == '"':  # a string that does not end: the file is cut off
                self._take(json.dumps(self._text[match.end() :]))
                break
            if token.startswith(("//", "/*")):
                comments.append((self._line, token))
            else:
                self._take(token)
        if self._key is not None:
            self._open[-1][0].children.append(Node("", self._line, self._line, self._key))
        root = self._open[0][0]
        for child in root.children:
            child.is_item = len(root.children) > 1
        return root, comments

    def _take(self, token: str) -> None:
        container, closing = self._open[-1]
        if token in "{[":
            node = self._add("", self._line)
            self._open.append((node, "}" if token == "{" else "]"))
        elif token in "}]":
            if token != closing or self._key is not None:
                raise ValueError("unbalanced")
            container.last = self._line
            self._open.pop()
        elif token == ":":
            if self._key is None or self._has_colon:
                raise ValueError("a colon without a key")
            self._has_colon = True
        elif token == ",":
            if self._key is not None or not closing:
                raise ValueError("a key without a value")
        elif closing == "}" and self._key is None:
            self._key = _scalar(token)
        else:
            self._add(_scalar(token), self._line + token.count("\n"))

    def _add(self, value: str, last: int) -> Node:
        container, closing = self._open[-1]
        if closing == "}" and not self._has_colon:
            raise ValueError("a value without a key")
        node = Node(self._key or "", self._line, last, value, is_item=closing == "]")
        container.children.append(node)
        self._key, self._has_colon = None, False
        return node


def _scalar(token: str) -> str:
    if token.startswith('"'):
        value = str(json.loads(token, strict=False))
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return token[1:-1] if token.startswith("'") and token.endswith("'") else token

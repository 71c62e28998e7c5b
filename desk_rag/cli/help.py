"""Print the guides in `assets/guides` as text for a terminal or a pipe."""

from __future__ import annotations

import difflib
import os
import shutil
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from desk_rag.assets import assets_dir
from desk_rag.errors import ConfigError

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

TOPICS = {
    "install": "installing with uv, pipx or pip; which build of torch; updating and removing",
    "asking": "follow-up questions, '@' names of folders and files, saved chats",
    "keys": "the keys of the UI, and how to change them",
    "files": "which files are read, which are left out, and how to change that",
    "background": "watching folders, answering sooner, starting at login, pausing, caches from another machine",
    "settings": "every setting with its default and its limits",
    "models": "using a larger model: which ones, GPU memory, disk space, downloads",
    "how-it-works": "what is stored, how an answer is made, and the words used for it",
    "recompute": "--recompute, --selector, --attention and --rungs",
    "fine-tuning": "teaching a model to read cached passages; training the embedded reader",
    "json": "the JSON output of each command, and exit codes",
    "privacy": "what is kept where, what leaves the machine, how to delete it",
    "reliability": "what survives a crash, a full disk or a damaged file, and how it is tested",
    "benchmarks": "speed and answer quality: every result, and how to measure your own machine",
}
_WIDEST = 100
_SPELLED_ALIKE = 0.8
"""Likeness from which a word counts as a slip of the keys: "serach" is like "search", "nope" is not like "open"."""
_NARROWEST_COLUMN = 8


def show(topic: str, commands: Sequence[str], stream: TextIO) -> None:
    """Write one guide, or the list of topics if `topic` is empty. Raises ConfigError for an unknown topic."""
    if not topic:
        stream.write(_overview(commands))
        return
    name = topic.lower().removesuffix(".md")
    if name not in TOPICS:
        raise _unknown(topic, commands)
    width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
    bold = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    stream.write(render(_text(name), width, bold=bold))


def unknown_word(word: str, commands: Sequence[str]) -> ConfigError:
    """Say that `word` is neither a command nor a folder, and which command was probably meant."""
    nearest = difflib.get_close_matches(word, commands, n=1, cutoff=_SPELLED_ALIKE)
    hint = f"Did you mean: desk-rag {nearest[0]}" if nearest else f"Commands: {', '.join(commands)}."
    return ConfigError(f"'{word}' is not a command or a folder.", remedy=f"{hint}\n  desk-rag --help describes them.")


def render(markdown: str, width: int, *, bold: bool = False) -> str:
    """Format Markdown as lines of at most `width` characters; code is indented and never wrapped."""
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    root = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(markdown))
    return "\n".join(_blocks(root.children, width, bold)) + "\n"


def _overview(commands: Sequence[str]) -> str:
    widest = max(map(len, TOPICS))
    topics = "".join(f"  {name:<{widest}}  {summary}\n" for name, summary in TOPICS.items())
    listed = textwrap.fill(", ".join(commands), 90, initial_indent="  ", subsequent_indent="  ")
    return (
        f"desk-rag help TOPIC prints one of these guides:\n\n{topics}\n"
        f"desk-rag help COMMAND describes the options of a command:\n\n{listed}\n"
    )


def _unknown(topic: str, commands: Sequence[str]) -> ConfigError:
    """Name the topic or command spelled most like `topic`, else the guides that mention it most often."""
    nearest = difflib.get_close_matches(topic.lower(), [*TOPICS, *commands], n=1, cutoff=_SPELLED_ALIKE)
    if not nearest:
        mentions = {name: _text(name).lower().count(topic.lower()) for name in TOPICS}
        nearest = sorted((name for name in TOPICS if mentions[name]), key=lambda name: -mentions[name])[:2]
    if nearest:
        remedy = f"Did you mean: desk-rag help {' or desk-rag help '.join(nearest)}"
    else:
        remedy = f"Topics: {', '.join(TOPICS)}."
    return ConfigError(f"There is no guide named '{topic}'.", remedy=remedy)


def _text(name: str) -> str:
    file = assets_dir() / "guides" / f"{name}.md"
    return file.read_text(encoding="utf-8") if file.is_file() else f"The guide {name}.md is missing from this copy.\n"


def _blocks(nodes: Sequence[SyntaxTreeNode], width: int, bold: bool, *, tight: bool = False) -> list[str]:
    lines = list[str]()
    for node in nodes:
        block = _block(node, width, bold)
        if lines and block and not tight:
            lines.append("")
        lines += block
    return lines


def _block(node: SyntaxTreeNode, width: int, bold: bool) -> list[str]:
    match node.type:
        case "heading":
            title = _inline(node)
            under = ("=" if node.tag == "h1" else "-") * len(title)
            return [f"\x1b[1m{title}\x1b[0m"] if bold else [title, under]
        case "paragraph":
            return _wrap(_inline(node), width)
        case "bullet_list" | "ordered_list":
            return _list(node, width, bold)
        case "fence" | "code_block":
            return [f"    {line}".rstrip() for line in node.content.rstrip("\n").split("\n")]
        case "table":
            return _table(node, width)
        case _:
            return []


def _list(node: SyntaxTreeNode, width: int, bold: bool) -> list[str]:
    lines = list[str]()
    for number, item in enumerate(node.children, start=1):
        mark = f"{number}. " if node.type == "ordered_list" else "- "
        first, *rest = _blocks(item.children, width - len(mark), bold, tight=True) or [""]
        lines += [mark + first, *(" " * len(mark) + line for line in rest)]
    return lines


def _table(node: SyntaxTreeNode, width: int) -> list[str]:
    cells = [cell for cell in node.walk() if cell.type == "th"]
    right = ["right" in str(cell.attrs.get("style", "")) for cell in cells]
    rows = [[_inline(cell, quoted=False) for cell in row.children] for row in node.walk() if row.type == "tr"]
    widths = [max(len(row[column]) for row in rows) for column in range(len(cells))]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > _NARROWEST_COLUMN:
        widths[widths.index(max(widths))] -= 1
    lines = list[str]()
    for number, row in enumerate(rows):
        wrapped = [_wrap(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            columns = zip(parts, widths, right, strict=True)
            lines.append("  ".join(f"{t:>{w}}" if r else f"{t:<{w}}" for t, w, r in columns).rstrip())
        if number == 0:
            lines.append("  ".join("-" * wide for wide in widths))
    return lines


def _inline(node: SyntaxTreeNode, *, quoted: bool = True) -> str:
    """Text of a block without markup; code keeps its backticks if `quoted`, and its spaces do not break."""
    parts = list[str]()
    for part in node.walk():
        if part.type == "text":
            parts.append(part.content)
        elif part.type == "code_inline":
            code = part.content.replace(" ", "\xa0") if len(part.content) < 60 else part.content
            parts.append(f"`{code}`" if quoted else code)
        elif part.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    return "".join(parts)


def _wrap(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace("\xa0", " ") for line in lines] or [""]

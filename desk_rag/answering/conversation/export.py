"""Write a saved chat as Markdown or JSON, with the sources of every answer."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from desk_rag.answering.conversation.saved import Change
from desk_rag.sanitize import clean, shown_path
from desk_rag.store.chats.records import SavedChat, SavedSource, SavedTurn

ChangeOf = Callable[[SavedSource], Change]
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~$])")
_LINE_END = re.compile(r"(?<=\S)\n(?=\S)")
"""A line break inside a paragraph, which Markdown would join to one line without two blanks before it."""
_LINE_START = re.compile(r"(?m)^(\s*)([-+=>]|\d+[.)])(?=\s|$)")


def as_markdown(chat: SavedChat, change_of: ChangeOf, bases: Sequence[Path] = ()) -> str:
    """Return a chat as Markdown; text from documents is escaped, so that it stays text."""
    lines = [f"# {_text(chat.title)}", "", f"desk-rag, {_moment(chat.started_at)}", ""]
    for turn in chat.turns:
        lines += [*_turn_lines(turn, change_of, bases), ""]
    return "\n".join(lines).rstrip() + "\n"


def as_json(chat: SavedChat, change_of: ChangeOf) -> dict[str, object]:
    """Return a chat as an object for JSON; assets/guides/json.md documents its keys."""
    return {
        "chat": chat.chat_id,
        "title": chat.title,
        "started": _moment(chat.started_at),
        "turns": [
            {
                "question": turn.question,
                "asked_as": turn.asked_as or None,
                "limited_to": [str(path) for path in turn.limited_to],
                "answer": turn.answer,
                "found": turn.found,
                "stopped": turn.stopped,
                "notices": list(turn.notices),
                "forgotten": turn.forgotten,
                "model": turn.model,
                "mode": turn.mode,
                "asked": _moment(turn.asked_at),
                "sources": [_source_json(source, change_of) for source in turn.sources],
            }
            for turn in chat.turns
        ],
    }


def dumps(value: object) -> str:
    """Return JSON that is safe to print in a terminal."""
    return json.dumps(value, ensure_ascii=True, indent=2) + "\n"


def file_name(chat: SavedChat, ending: str) -> str:
    """Return a name for the exported file: 'chat-7-boiler-warranty.md'."""
    words = re.findall(r"[a-z0-9]+", chat.title.casefold())[:6]
    return "-".join(["chat", str(chat.chat_id), *words]) + f".{ending}"


def _turn_lines(turn: SavedTurn, change_of: ChangeOf, bases: Sequence[Path]) -> list[str]:
    lines = [f"## {_text(turn.question)}", ""]
    if turn.asked_as:
        lines += [f"Asked as: {_text(turn.asked_as)}", ""]
    if turn.limited_to:
        lines += [f"Searched only: {', '.join(_code(shown_path(path, bases)) for path in turn.limited_to)}", ""]
    lines += [_LINE_END.sub("  \n", _text(turn.answer, single_line=False)) or "(no answer)", ""]
    if turn.stopped:
        lines += ["(stopped)", ""]
    for notice in turn.notices:
        lines += [f"({_text(notice)})", ""]
    quoted = [source for source in turn.sources if source.quote]
    for source in quoted:
        lines += [f"- [{source.number}] {_where(source, change_of, bases)}", f"  > {_text(source.quote)}"]
    others = [source for source in turn.sources if not source.quote] if not quoted else []
    if others:
        lines += ["Nearest passages:", ""]
        lines += [f"- [{source.number}] {_where(source, change_of, bases)}" for source in others]
    return lines


def _where(source: SavedSource, change_of: ChangeOf, bases: Sequence[Path]) -> str:
    change = change_of(source)
    mark = f" ({change.value})" if change.value else ""
    return f"{_code(shown_path(source.path, bases))} {_text(source.place)}".rstrip() + mark


def _source_json(source: SavedSource, change_of: ChangeOf) -> dict[str, object]:
    location = source.location
    return {
        "number": source.number,
        "path": os.fsdecode(source.path),
        "title": source.title,
        "place": source.place,
        "heading": location.heading,
        "page_start": location.page_start,
        "page_end": location.page_end,
        "line_start": location.line_start,
        "line_end": location.line_end,
        "quote": source.quote,
        "blake2b_256": source.digest,
        "change": change_of(source).value or None,
    }


def _text(text: str, *, single_line: bool = True) -> str:
    """Return text whose signs mean nothing in Markdown."""
    return _LINE_START.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", clean(text, single_line=single_line)))


def _code(text: str) -> str:
    """Return text as inline code; a run of backticks in it needs longer ones around it."""
    plain = clean(text, single_line=True)
    longest = max((len(run) for run in re.findall(r"`+", plain)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {plain} {fence}" if longest else f"{fence}{plain}{fence}"


def _moment(unix_time: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_time))

"""Run `desk-rag chats`: list, show, search, export and delete saved chats."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from desk_rag.answering.conversation import export
from desk_rag.answering.conversation.saved import Change, change_of
from desk_rag.cli import output as out
from desk_rag.cli.store_access import confirm, exists, open_store, print_lines
from desk_rag.config import Settings
from desk_rag.errors import ConfigError, DeskRagError, StoreError
from desk_rag.store.chats.chats import Chats, open_chats
from desk_rag.store.chats.records import ChatRow, SavedChat, SavedSource

_LISTED = 20
"""Chats that are listed without --all; every question asked by itself is one."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action of `desk-rag chats` and the chats it is for."""

    name: str
    """list | show | search | export | delete"""
    which: str
    """The chat's number, or the words to search for."""
    form: str
    """Form of an export: md | json."""
    sure: bool
    as_json: bool
    all_of_them: bool = False
    """List all chats, not only the latest."""


def run(settings: Settings, action: Action) -> int:
    """Carry out one action; returns the exit code. Raises ConfigError, StoreError."""
    chats, notice = open_chats(settings.data_dir, create=False)
    if notice:
        out.Progress(sys.stderr).say(notice)
    if chats is None:
        if notice:
            return StoreError.exit_code
        return _no_chats(settings, action)
    try:
        return _ACTIONS[action.name](settings, chats, action)
    finally:
        chats.close()


def _no_chats(settings: Settings, action: Action) -> int:
    if action.name in ("show", "export", "delete"):
        raise ConfigError("There are no saved chats.")
    if action.as_json:
        out.print_json(sys.stdout, {"chats": []})
    else:
        why = "" if settings.chats.save else " (the settings say save = false under [chats])"
        print_lines([f"There are no saved chats{why}."])
    return 0


def _list(_settings: Settings, chats: Chats, action: Action) -> int:
    return _print_rows(chats.rows(), action, "There are no saved chats.")


def _search(_settings: Settings, chats: Chats, action: Action) -> int:
    if not action.which.strip():
        raise ConfigError("Name the words to search for.", remedy="desk-rag chats search warranty")
    return _print_rows(chats.search(action.which), action, "No chat contains these words.")


def _print_rows(rows: Sequence[ChatRow], action: Action, nothing: str) -> int:
    if action.as_json:
        all_rows = [
            {"chat": row.chat_id, "title": row.title, "changed": _moment(row.changed_at), "turns": row.num_turns}
            for row in rows
        ]
        out.print_json(sys.stdout, {"chats": all_rows})
        return 0
    listed = rows if action.all_of_them else rows[:_LISTED]
    lines = []
    for row in listed:
        turns = out.plural(row.num_turns, "turn")
        lines.append(f"{row.chat_id:>5}  {_day(row.changed_at):>16}  {turns:>8}  {out.shorten(row.title, 80)}")
        if row.excerpt:
            lines.append(f"       {out.shorten(row.excerpt, 100)}")
    if older := len(rows) - len(listed):
        lines.append(f"{older:,} older {'one' if older == 1 else 'ones'}: --all")
    print_lines(lines or [nothing])
    return 0


def _show(settings: Settings, chats: Chats, action: Action) -> int:
    chat = chats.get(_number(action.which))
    with _changes(settings) as change:
        if action.as_json:
            out.print_json(sys.stdout, export.as_json(chat, change))
        else:
            _print_chat(chat, change)
    return 0


def _print_chat(chat: SavedChat, change: export.ChangeOf) -> None:
    lines = [f"Chat {chat.chat_id}, {_moment(chat.started_at)}"]
    for turn in chat.turns:
        lines += ["", f"> {' '.join(turn.question.split())}"]
        lines += [f"(asked as: {turn.asked_as})"] if turn.asked_as else []
        for source in turn.sources:
            if source.quote:
                mark = f" ({state.value})" if (state := change(source)).value else ""
                quote = " ".join(source.quote.split())
                lines.append(f"[{source.number}] {out.place(source.path, source.location)}{mark} “{quote}”")
        lines += [turn.answer, *(["(stopped)"] if turn.stopped else []), *(f"({notice})" for notice in turn.notices)]
    print_lines(lines)


def _export(settings: Settings, chats: Chats, action: Action) -> int:
    chat = chats.get(_number(action.which))
    with _changes(settings) as change:
        as_json = action.form == "json" or action.as_json
        text = export.dumps(export.as_json(chat, change)) if as_json else export.as_markdown(chat, change)
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _delete(_settings: Settings, chats: Chats, action: Action) -> int:
    chat = chats.get(_number(action.which))
    confirm(f"chat {chat.chat_id}, '{chat.title}'", sure=action.sure)
    chats.delete(chat.chat_id)
    if action.as_json:
        out.print_json(sys.stdout, {"deleted": chat.chat_id})
    else:
        print_lines([f"Deleted chat {chat.chat_id}."])
    return 0


_ACTIONS: dict[str, Callable[[Settings, Chats, Action], int]] = {
    "list": _list,
    "show": _show,
    "search": _search,
    "export": _export,
    "delete": _delete,
}


@contextmanager
def _changes(settings: Settings) -> Iterator[export.ChangeOf]:
    """Compare saved sources with the index; without an index only with what is on the disk."""
    if not exists(settings):
        yield lambda source: Change.NONE if source.path.exists() else Change.GONE
        return
    try:
        store = open_store(settings, writer=False)
    except DeskRagError:
        yield lambda source: Change.NONE if source.path.exists() else Change.GONE
        return

    def compare(source: SavedSource) -> Change:
        return change_of(source, store.document)

    with store:
        yield compare


def _number(which: str) -> int:
    if not which.isdecimal():
        raise ConfigError(
            f"'{which}' is not the number of a chat." if which else "Name a chat by its number.",
            remedy="desk-rag chats lists them.",
        )
    return int(which)


def _moment(unix_time: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_time))


def _day(unix_time: float) -> str:
    """'today 14:05', 'yesterday 09:30', or '2026-11-20 17:12', in local time."""
    moment, now = datetime.fromtimestamp(unix_time), datetime.now()
    name = {0: "today", 1: "yesterday"}.get((now.date() - moment.date()).days)
    return f"{name} {moment:%H:%M}" if name else f"{moment:%Y-%m-%d %H:%M}"

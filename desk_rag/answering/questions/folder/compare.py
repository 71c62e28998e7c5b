"""Put two documents side by side: values under the same label, and sentences that are nearly alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.fields import Field, cells_of, fields_of, without_sheet
from desk_rag.answering.questions.folder.reading.kinds import is_of_kind, kind_in
from desk_rag.answering.questions.folder.reading.naming import mentioned, things_named
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.matching import Row, quotable_rows
from desk_rag.answering.questions.narrowing import indexed, some_of
from desk_rag.answering.questions.whole_folder import FolderQuestion, listed, not_readable, show
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store
    from desk_rag.store.types import DocumentRow, Passage

_ASKS = (
    re.compile(r"^(?:please\s+)?(?:compare|contrast)(?:\s+(?P<what>.+))?$", re.I),
    re.compile(
        r"^(?:what(?:['’]s|\s+is|\s+are)|show\s+(?:me\s+)?|list\s+)\s*(?:the\s+)?differences?\s+(?:between|of|in)\s+(?P<what>.+)$",
        re.I,
    ),
    re.compile(r"^(?:how|where|in\s+what)\s+do(?:es)?\s+(?P<what>.+?)\s+differ(?P<more>\s+from\s+.+)?$", re.I),
    re.compile(r"^what\s+is\s+different\s+(?:in|between)\s+(?P<what>.+)$", re.I),
    re.compile(
        r"^what(?:\s+(?:has|was|is|have))?\s+changed\s+(?:between|from|in)\s+(?P<what>.+?\s"
        r"(?:and|to|compared\s+(?:with|to)|against|since|over|relative\s+to)\s.+)$",
        re.I,
    ),
    re.compile(
        r"^how\s+(?:has|have|was|did)\s+(?P<what>.+?)\s+changed?(?P<more>\s+(?:from|since|compared\s+with)\s+.+)$", re.I
    ),
)
_PARTED = re.compile(
    r"\s+(?:(?:compared\s+|relative\s+)?(?:with|to)|and|against|versus|vs\.?|from|since|over)\s+", re.I
)
_ALIKE = 0.4
"""Share of their words that two sentences must have in common to be put side by side."""
_CLAUSE = re.compile(r"(?:§|\b(?:clause|section|article)\b)\s*(\d+)", re.I)
_LONGEST_BEGINNING = 60
"""Characters of a sentence that nothing was set beside."""
_LIGHT = content_stems("two both our my the all")
_MOST_LINES, _MOST_NAMED = 40, 8


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield two documents side by side; nothing if the question asks for no comparison of documents."""
    match = first_match(_ASKS, question.text)
    if match is None:
        return
    what = f"{match['what'] or ''}{match.groupdict().get('more') or ''}"
    rows = list({row.path: row for row in indexed(question.store, question.under)}.values())
    chosen, fault = _chosen(question.store, rows, what, question.under)
    if fault:
        yield from not_readable(question.text, [fault])
        return
    if len(chosen) != 2:
        return
    first, second = (question.store.passages_of(row.path) for row in chosen)
    lines, quotes = _side_by_side(first, second)
    if not quotes and not all(row.path.name.casefold() in what.casefold() for row in chosen):
        return
    shown, roots = show(question.store, quotes[:_MOST_LINES]), question.store.volumes.roots()
    heads = [
        listed(next((one for one in shown.citations if one.path == row.path), None), "", row.path, roots)
        for row in chosen
    ]
    text = "\n".join([*heads, *([] if quotes else ["No label and no sentence of the two is alike."]), *lines])
    text += "\nOnly set side by side, by labels and by sentences with the same words; nothing is judged."
    passages = len(first) + len(second)
    yield from question.answered(text, shown, passages, 2)


def _chosen(
    store: Store, rows: Sequence[DocumentRow], what: str, under: Sequence[Path]
) -> tuple[list[DocumentRow], str]:
    """The two documents that are meant, or a sentence that says why that is unclear."""
    if not what:
        return (list(rows), "") if len(rows) == 2 else ([], "")
    by_name = {row.path.name: row for row in rows}
    whole = list(dict.fromkeys(name for name, _, _ in mentioned(by_name, what)))
    if len(whole) == 2:
        return [by_name[name] for name in whole], ""
    kind_found = kind_in(what)
    parts = _PARTED.split(re.sub(r"^(?:between|the\s+two)\s+", "", what, flags=re.I), maxsplit=1)
    if len(parts) == 2:
        named = [things_named(rows, part, under).documents for part in parts]
        if all(len(one) == 1 for one in named):
            return [named[0][0], named[1][0]], ""
    if kind_found is None or kind_found[0].is_any:
        return [], ""
    kind, place = kind_found
    of_kind = [row for row in rows if is_of_kind(kind, row, store.passages_of(row.path), under)]
    words = [content_stems(part[: place.start()] + part[place.end() :] if index == 0 else part)
             for index, part in enumerate(parts)]  # fmt: skip
    if len(parts) == 2:
        named = [
            tuple(row for row in of_kind if word <= content_stems(row.path.stem))
            if (word := one - content_stems(kind.words))
            else ()
            for one in words
        ]
        if all(len(one) == 1 for one in named):
            return [named[0][0], named[1][0]], ""
    if len(of_kind) > 2 and len(parts) == 1 and (wanted := words[0] - content_stems(kind.words) - _LIGHT):
        of_kind = [row for row in of_kind if wanted <= content_stems(row.path.stem)] or of_kind
    if len(of_kind) > 2:
        names = some_of([clean_name(row.path.name) for row in of_kind], _MOST_NAMED)
        which = f"There are {kind.plural(len(of_kind))}: {names}."
        return [], f"{which} Name the two that are meant: “Compare FILE with FILE”."
    return of_kind, ""


def _side_by_side(first: Sequence[Passage], second: Sequence[Passage]) -> tuple[list[str], list[Row]]:
    """The lines of the comparison, and what they quote."""
    lines: list[str] = []
    quotes: list[Row] = []
    fields = [_by_label(fields_of(passages)) for passages in (first, second)]
    same = []
    for label, one in fields[0].items():
        if (other := fields[1].get(label)) is None:
            continue
        differences = _differences(one, other)
        if not differences:
            same.append(one.label)
        else:
            lines.append(f"{one.label}: {'; '.join(differences)}")
            quotes += [Row(one.passage, one.quote), Row(other.passage, other.quote)]
    sentences = [_sentences(passages, labelled) for passages, labelled in zip((first, second), fields, strict=True)]
    for left, right in _alike(*sentences):
        lines.append(f"{left.text} | {right.text}")
        quotes += [left, right]
    if same:
        lines.append(f"The same in both: {', '.join(same)}.")
    alone_in = [[one for label, one in mine.items() if label not in others]
                for mine, others in (fields, fields[::-1])]  # fmt: skip
    pairs = list(_beside_lines(alone_in, (first, second), {row.text for row in quotes}))
    lines += [" | ".join(row.text for row in pair) for pair in pairs]
    quotes += [row for pair in pairs for row in pair]
    quoted = {row.text for row in quotes}
    for alone, side in zip(alone_in, ("first", "second"), strict=True):
        only = [one for one in alone if one.quote not in quoted and content_stems(one.label)]
        if names := [f"{one.label} ({one.value})" if one.around else one.label for one in only]:
            lines.append(f"Only in the {side}: {', '.join(names)}.")
    for rows, others, side in zip(sentences, sentences[::-1], ("first", "second"), strict=True):
        beside = quoted | {row.text for row in others}
        unmatched = [row for row in rows if row.text not in beside]
        if begins := [shorten(row.text, _LONGEST_BEGINNING, placeholder=" …") for row in unmatched]:
            named = f"“{'”, “'.join(begins[:_MOST_NAMED])}”{_more(begins)}"
            lines.append(f"Nothing was set beside these of the {side}: {named}.")
    return lines[:_MOST_LINES], quotes


def _more(begins: Sequence[str]) -> str:
    return f" and {len(begins) - _MOST_NAMED:,} more" if len(begins) > _MOST_NAMED else ""


def _beside_lines(
    alone_in: Sequence[Sequence[Field]], documents: Sequence[Sequence[Passage]], quoted: set[str]
) -> Iterator[tuple[Row, Row]]:
    """Fields of one document beside a line of the other that has the words of their label."""
    for is_first, alone, others in ((True, alone_in[0], documents[1]), (False, alone_in[1], documents[0])):
        for one in alone:
            line = _line_with(one.label, others)
            if one.quote in quoted or line is None or not content_stems(one.label):
                continue
            own = Row(one.passage, one.quote)
            quoted |= {own.text, line.text}
            yield (own, line) if is_first else (line, own)


def _line_with(label: str, passages: Sequence[Passage]) -> Row | None:
    """The shortest line of a document that has all words of a label, if it is no label there; None without one.

    'To § 2' stands for the clause that begins so, and a bare number for nothing.
    """
    stems, rows = content_stems(label), quotable_rows(passages)
    if clause := _CLAUSE.search(label):
        return next((row for row in rows if (own := _CLAUSE.match(row.text)) and own[1] == clause[1]), None)
    if not any(map(str.isalpha, "".join(stems))):
        return None
    return min((row for row in rows if stems <= content_stems(row.text)), key=lambda row: len(row.text), default=None)


def _differences(one: Field, other: Field) -> list[str]:
    """Return '36 | 42', or 'Paid yes | no' for each column that two rows of tables share; [] where they are equal."""
    columns = [{_column(key): (key, value) for key, value in cells_of(field.quote)} for field in (one, other)]
    shared = [key for key in columns[0] if key and key in columns[1]] if one.around and other.around else []
    if not shared:
        return [] if one.value.casefold() == other.value.casefold() else [f"{one.value} | {other.value}"]
    pairs = [(columns[0][key], columns[1][key]) for key in shared]
    return [
        f"{name} {value} | {other_value if other_name == name else f'{other_name} {other_value}'}"
        for (name, value), (other_name, other_value) in pairs
        if value.casefold() != other_value.casefold()
    ]


def _column(name: str) -> str:
    """A column's name without its year, so that 'Rent 2024 (£)' and 'Rent 2025 (£)' are the same column."""
    return re.sub(r"\b(?:19|20)\d\d\b", "", name).casefold()


def _with_item(field: Field) -> Field:
    """Label a row that begins with a number by its item instead: number 2 of another list is something else."""
    if not field.around or any(map(str.isalpha, field.label)):
        return field
    cells = [(key, value) for key, value in without_sheet(cells_of(field.quote)) if value != field.value]
    item = next((value for _, value in cells if any(map(str.isalpha, value))), "")
    return replace(field, label=item or f"{cells[0][0]} {field.label}".strip()) if cells else field


def _by_label(fields: Sequence[Field]) -> dict[str, Field]:
    by_label: dict[str, Field] = {}
    for one in map(_with_item, fields):
        if one.label and not one.label.startswith("From"):
            by_label.setdefault(one.label.casefold(), one)
    return by_label


def _sentences(passages: Sequence[Passage], fields: dict[str, Field]) -> list[Row]:
    """The sentences without a labelled value."""
    quotes = [field.quote for field in fields.values()]
    rows = quotable_rows(passages)
    return [row for row in rows if len(row.text.split()) > 3 and not any(quote in row.text for quote in quotes)]


def _alike(first: Sequence[Row], second: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Pairs of sentences that share many words and are not equal."""
    unpaired = list(second)
    for row in first:
        stems = content_stems(row.text)
        best = max(unpaired, key=lambda other: _jaccard(stems, content_stems(other.text)), default=None)
        if (
            best is not None
            and _jaccard(stems, content_stems(best.text)) >= _ALIKE
            or best is not None
            and _same_opening(row.text, best.text)
        ):
            unpaired.remove(best)
            if best.text != row.text:
                yield row, best


def _jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0


def _same_opening(one: str, other: str) -> bool:
    """True if two sentences begin with the same four words, as clauses of contracts do."""
    words = [text.casefold().split()[:4] for text in (one, other)]
    return words[0] == words[1] and len(words[0]) == 4

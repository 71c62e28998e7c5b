"""Say what somebody still owes by a table with a column of what is due and one of what was paid.

'Amount due: 150; Paid so far: 50' leaves 100 to pay, which stands in neither column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent
from desk_rag.answering.questions.folder.reading.periods import Period, take_period
from desk_rag.answering.questions.folder.tables.cells import rows_of
from desk_rag.answering.questions.forms import first_match
from desk_rag.answering.questions.matching import Row
from desk_rag.answering.questions.narrowing import distinct, indexed
from desk_rag.answering.questions.whole_folder import FolderQuestion
from desk_rag.answering.requirements import amounts
from desk_rag.answering.requirements.dates import A_YEAR, Date
from desk_rag.answering.requirements.stems import content_stems
from desk_rag.answering.requirements.titles import without_titles
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean_name

if TYPE_CHECKING:
    from desk_rag.store.store import Store

_OF_ONE = re.compile(
    r"^(?:what|how\s+much)\s+(?:does|do|did|has|have)\s+(?P<who>(?!I\b|we\b).+?)\s+(?:still\s+)?"
    r"(?:owe[ds]?|(?:have\s+)?(?:(?:still|yet)\s+)?to\s+pay)\b(?P<rest>.*)$",
    re.I,
)
_OF_ALL = re.compile(
    r"^(?:who|(?:which|what)(?:\s+of)?(?:\s+(?:the|our|my))?\s+[\w-]+)\s+"
    r"(?:(?:still\s+)?owes?\b|(?:has|have|had|did)(?:\s+not|n['’]t)\s+(?:yet\s+)?(?:paid|pay)\b"
    r"(?=.*\b(?:all|whole|full|rest)\b))(?P<rest>.*)$",
    re.I,
)
_DUE = re.compile(r"\b(?:due|owed|owing|payable|to[\s_]+pay)\b", re.I)
_PAID = re.compile(r"\b(?:paid|received|settled)\b", re.I)


@dataclass(frozen=True, slots=True)
class _Account:
    """A row with what is due and what of it was paid."""

    row: Row
    due: Decimal
    paid: Decimal
    columns: tuple[str, str]

    @property
    def left(self) -> Decimal:
        return self.due - self.paid

    @property
    def name(self) -> str:
        """Its first cell, that of the sheet's name apart."""
        fields = amounts.fields_of(self.row.text)
        return next((value for column, value in fields.items() if column != "Sheet"), "")


def answer(question: FolderQuestion) -> Iterator[AnswerEvent]:
    """Yield what is left to pay, with the rows; nothing if no table has both columns, or no row is of that name."""
    asked = first_match([_OF_ONE, _OF_ALL], without_titles(question.text))
    if asked is None:
        return
    is_of_one = asked.re is _OF_ONE
    _, period = take_period(asked["rest"], question.today)
    documents = list(distinct(indexed(question.store, question.under)))
    accounts = [account for document in documents for account in _accounts(question.store, document.path)
                if period is None or _is_of(account, period)]  # fmt: skip
    if is_of_one:
        who = content_stems(asked["who"])
        chosen = [account for account in accounts if who and who <= content_stems(account.name)]
    else:
        chosen = [account for account in accounts if account.left > 0]
    if not chosen or (is_of_one and len({account.left for account in chosen}) > 1):
        return
    rows = [account.row for account in chosen]
    yield from question.answered(_text(chosen, accounts, is_of_one), rows, len(accounts), len(documents))


def _text(chosen: Sequence[_Account], accounts: Sequence[_Account], is_of_one: bool) -> str:
    if is_of_one:
        account = chosen[0]
        due, paid = account.columns
        return f"{account.left:,} (computed: “{due}” {account.due:,} less “{paid}” {account.paid:,})"
    files = ", ".join(dict.fromkeys(clean_name(account.row.passage.path.name) for account in chosen))
    names = ", ".join(f"{clean_name(account.name)} ({account.left:,})" for account in chosen)
    return f"{names} (computed: what is left to pay in {len(chosen):,} of {plural(len(accounts), 'row')} of {files})"


def _accounts(store: Store, path: Path) -> Iterator[_Account]:
    """The rows of a file that has one column of what is due and one of what was paid, both with numbers."""
    rows = list(rows_of(store.passages_of(path)))
    columns = {column for _, fields in rows for column, value in fields.items()
               if len(fields) > 2 and amounts.number_of(value) is not None}  # fmt: skip
    due = [column for column in columns if _DUE.search(column.replace("_", " "))]
    paid = [column for column in columns if _PAID.search(column.replace("_", " ")) and column not in due]
    if len(due) != 1 or len(paid) != 1:
        return
    for row, fields in rows:
        of_due = amounts.number_of(fields.get(due[0], ""))
        of_paid = amounts.number_of(fields.get(paid[0], "0"))  # an empty cell is left out of a row
        if of_due is not None and of_paid is not None:
            yield _Account(row, of_due, of_paid, (due[0], paid[0]))


def _is_of(account: _Account, period: Period) -> bool:
    """True if the name of the file, or the heading above the row, is of the period."""
    passage = account.row.passage
    years = A_YEAR.findall(f"{passage.path.stem} {passage.chunk.location.heading}")
    return any(period.holds(Date(int(year), 0, 0)) for year in years)

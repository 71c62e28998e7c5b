"""Reply to what is no question about documents: greetings, thanks, questions about desk-rag itself, nothing at all.

A reader of documents would answer 'hello' with a random quote. Only whole messages count, by rule.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from desk_rag.answering.events import AnswerEvent, AnswerText, Finished, FirstToken, Retrieved, Stage, Timings
from desk_rag.documents.status import plural
from desk_rag.sanitize import clean

if TYPE_CHECKING:
    from desk_rag.store.store import Store


class Talk(Enum):
    """A kind of message that is no question about documents."""

    EMPTY = "nothing"
    GREETING = "a greeting"
    THANKS = "thanks"
    FAREWELL = "a farewell"
    ABOUT = "a question about desk-rag"


_END = r"(?:\s+(?:desk-?rag|there|everyone|again|so much|very much|a lot|you))*[\s!.,?:;)(-]*$"
_PATTERNS = (
    (Talk.EMPTY, re.compile(r"^[\W_]*$")),
    (
        Talk.GREETING,
        re.compile(
            r"^\W*(?:hello|hi+|hey+|hiya|howdy|good\s+(?:morning|afternoon|evening|day)|greetings|test(?:ing)?"
            r"|how\s+are\s+you(?:\s+(?:doing|today))?|what['’]s\s+up|is\s+(?:anybody|anyone|somebody)\s+there)" + _END,
            re.I,
        ),
    ),
    (
        Talk.THANKS,
        re.compile(
            r"^\W*(?:(?:ok|okay|great|perfect|good|super|nice|cool|yes)[\s,.!]+)?(?:(?:many\s+)?thanks?|thank\s+you|thx|ta"
            r"|cheers|great|perfect|ok(?:ay)?|nice|cool|well\s+done|good\s+(?:job|bot)"
            r"|that['’]?s\s+(?:great|right|it))" + _END,
            re.I,
        ),
    ),
    (
        Talk.FAREWELL,
        re.compile(r"^\W*(?:good\s*bye|bye+|bye[\s-]bye|see\s+you(?:\s+(?:later|soon))?|good\s+night)" + _END, re.I),
    ),
    (
        Talk.ABOUT,
        re.compile(
            r"^\W*(?:(?:who|what)\s+are\s+you|what(?:['’]s|\s+is)\s+your\s+(?:name|purpose|job)|what(?:['’]s|\s+is)\s+desk-?rag"
            r"|what\s+(?:can|do|could)\s+(?:you|i|desk-?rag)\s+(?:do|ask|answer|know)(?:\s+(?:for\s+me|here))?"
            r"|what\s+(?:kinds?\s+of\s+)?questions\s+(?:can|may|could|should)\s+i\s+ask(?:\s+you)?"
            r"|how\s+(?:can|could|do)\s+(?:you\s+help(?:\s+me)?|you\s+work|i\s+use\s+(?:you|this|it|desk-?rag))|how\s+does\s+"
            r"(?:this|it|desk-?rag)\s+work|help(?:\s+me)?|can\s+you\s+help(?:\s+me)?|are\s+you\s+(?:an?\s+)?(?:ai|bot|robot"
            r"|human|chatgpt|real|chatbot|person)|tell\s+me\s+about\s+yourself|introduce\s+yourself)" + _END,
            re.I,
        ),
    ),
)
_OPENINGS = {
    Talk.EMPTY: "There is no question.",
    Talk.GREETING: "Hello.",
    Talk.THANKS: "You are welcome.",
    Talk.FAREWELL: "Goodbye.",
    Talk.ABOUT: "This is desk-rag. It finds and quotes what your own files say, on this computer.",
}
_EXAMPLES = (
    "“When does the lease end?”, “Which files mention …?”, “List all …”, “Summarise FILE”, “Show Ana’s mails in May”"
)
_MOST_FOLDERS = 3


def kind_of(message: str) -> Talk | None:
    """The kind of a message that is no question about documents; None for all others."""
    return next((kind for kind, pattern in _PATTERNS if pattern.match(message)), None)


def answer(kind: Talk, message: str, store: Store, under: Sequence[Path]) -> Iterator[AnswerEvent]:
    """Yield the reply: what can be asked, and about which files."""
    from desk_rag.answering.context import answer_without_sources

    began = time.perf_counter()
    text = _OPENINGS[kind]
    if kind not in (Talk.THANKS, Talk.FAREWELL):
        text += f" {_can_be_asked(store, under)}"
    if kind is Talk.ABOUT:
        text += " It does not compare, translate or write in its own words. `desk-rag help asking` says more."
    timings = Timings((Stage("read", time.perf_counter() - began),))
    yield Retrieved(())
    yield FirstToken(timings)
    yield AnswerText(text)
    yield Finished(answer_without_sources(message, text, timings, found=True, model="none (a fixed reply)"))


def _can_be_asked(store: Store, under: Sequence[Path]) -> str:
    files = store.counts(under=under).files
    if not files:
        return "No files have been read yet: `desk-rag index FOLDER` reads a folder."
    names = [clean(path.name or str(path), single_line=True) for path in under[:_MOST_FOLDERS]]
    names += ["…"] if len(under) > _MOST_FOLDERS else []
    where = f" in {', '.join(names)}" if names else ""
    return f"Ask about the {plural(files, 'file')} read{where}, for example {_EXAMPLES}."

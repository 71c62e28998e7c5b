"""Cut text into sentences: groups of a few for chunk boundaries, and single ones for quotation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from semantic_text_splitter import TextSplitter

_SENTENCE_BREAK = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])")
_LINE_BREAK = re.compile(r"\n")
_SENTENCE_END = re.compile(r"[.!?:;…。！？][\"'”’)\]]*$")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|etc|approx|e\.g|i\.e|[A-Z])\.$")
_LOOK_BACK = 24
"""Characters on each side of a point that decide whether it ends a sentence."""
_LONGEST_WORD = 400
_LONGEST_SENTENCE = 20_000
"""Characters: what runs on for longer is data (minified JSON, a row of 100,000 columns), whatever its blanks say."""
_CHARACTERS_PER_TOKEN = 3
_LATIN_LOWER, _LATIN_UPPER = "\u00df-\u00f6\u00f8-\u00ff\u0153", "\u00c0-\u00d6\u00d8-\u00de\u0152"
_QUOTED_END = re.compile(
    rf"(?:(?<=[a-z0-9{_LATIN_LOWER})\"'%°€])|(?<=°[CF])|(?<=\d,[-–])|(?<=[A-Z][A-Z][A-Z]))[.!?][\"')”“»]?\s+(?=[A-Z{_LATIN_UPPER}\"'(0-9«„“])"
)
"""End of a sentence, as in the embedded reader's training texts; also after 'payé', '60 €', '5,-', before 'Über'."""
NO_END = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Rev|Capt|Lt|Sgt|Nr|Fig|vs|cf|approx|e\.g|i\.e)\.$")
"""Abbreviations that never end a quote. 'No.' and 'etc.' are missing, because they often end sentences. So may 'St.';
a quote then continues into the next sentence."""
_MONTHS = (
    "Jan|Feb|M[äa]r|Apr|Ma[iy]|Jun|Jul|Aug|Sep|Okt|Oct|Nov|De[zc]|J[äa]nner|janvier|f[ée]vrier|mars|avril|juin|juillet|"
    "ao[ûu]t|septembre|octobre|novembre|d[ée]cembre"
)
_NO_END_BEFORE = tuple(
    (re.compile(before), re.compile(after))
    for before, after in (
        (r"(?:^|[\s(])\d{1,2}\.$", rf"(?:{_MONTHS})"),  # 12. Mai
        (
            r"\b(?:[Aa]m|[Ii]m|[Vv]om|[Zz]um|[Zz]ur|[Bb]eim|[Dd]er|[Dd]ie|[Dd]as|[Dd]en|[Dd]em|[Dd]es) \d{1,3}\.$",
            r"[A-ZÄÖÜ]",
        ),  # das 3. Quartal
        (r"(?:^|[\s(])\d{1,2}\.$", r"(?:Stock(?:werk)?|OG|Obergeschoss|Etage|Werktag|Quartal|Halbjahr|Auflage)\b"),
        (r"(?:^|[\s(])\d{1,2}\.$", r"\d{1,2}\. ?\d{2,4}\b"),  # 3. 5. 1970
        (r"(?:^|[\s(])\d{1,2}\. ?\d{1,2}\.$", r"(?:19|20)\d\d\b"),
        (r"\b(?:Nos?|Nrn?|Abb|Tab|Anm|Rn|Tel|S|pp?|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Okt|Oct|Nov|De[cz])\.$", r"\d"),
        (
            r"\b(?:[Aa]rts?|[Aa]bs|[Kk]ap|[Zz]iff|[Bb]d|[Vv]ols?|[Ss]ec|[Cc]h|[Cc]ap|[Pp]ara|[Ee]xt|[Oo]p|[Mm]in|[Mm]ax|\w+nr)\.$",
            r"\d",
        ),  # Art. 5, Hausnr. 7
        (r"\b(?:Mo|Di|Mi|Do|Fr|Sa|So|Mon|Tues?|Wed|Thu|Fri|Sat|Sun)\.$", r"\d{1,2}\b"),  # Sa. 14. Juni
        (
            r"\b(?:lun|mar|mer|jeu|ven|sam|dim|ma|di|wo|do|vr|za|zo|mié|jue|vie|sáb|dom|gio|sab)\.$",
            r"\d{1,2}\b",
        ),  # di. 3 juni
        (
            r"\b(?:janv|févr|avr|juil|sept|oct|nov|déc|jan|febr?|mrt|apr|jun|jul|aug|okt|dec|ene|abr|dic|genn?|magg?|giu|lug|ott)\.$",
            r"\d",
        ),  # 3 févr. 2019
        (r"\b(?:nr|blz|env|tél|tel|réf|Bj|Hs|Whg|Kto|Abt|Az|Zi)\.$", r"\d"),
        (r"\b(?:al|núm|pág|págs|pagg?|aprox|lett|rd|mind|\w*[Ss]tr)\.$", r"\d"),  # Lindenstr. 14
        (r"\b(?:Avda|Ctra|[Vv]\.le|P\.za|[Bb]oul)\.$", r"[A-ZÀ-Ý]"),
        (r"\b[ap]\.m\.$", r"(?:on |Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)"),
        (r"\bCo\.$", r"(?:KG|KGaA|OHG|Ltd|Inc|LLC)\b"),
        (r"\b(?:Mme|Mlle|Sra?|Srta|D[oñ]a|Dra|Sig\.ra|[Dd]hr|[Mm]evr|Hrn|Mag|Gebr|Jr|Sr)\.$", r"[A-ZÄÖÜÉ]"),
        (r"\b(?:[Ss]igg?|[Dd]ott|[Aa]vv|[Gg]eom|[Rr]ag|[Aa]rch|Spett)\.$", r"[A-ZÄÖÜÉ]"),
        (r"\b(?:bzw|[Cc]a|[Vv]gl|[Ii]nkl|[Ee]xkl|[Zz]zgl|[Gg]gf|[Ee]vtl|[Ss]og|[Bb]spw|[Ii]nsb)\.$", r""),
        (r"\b(?:Hr|Fr|Dipl|Ing|geb|Mio|Mrd|Tsd|Str)\.$", r""),
        (r"\b(?:[Ll]t|[Gg]em|med|jur|phil|rer|nat|Fa)\.$", r""),
        (r"\b(?:dr|drs|ir|mr|mw|bijv|resp|m\.i\.v|i\.v\.m|t\.a\.v|t\.n\.v|o\.a|v\.a|bd|av|ch|pl)\.$", r"[A-ZÄÖÜÉ0-9]"),
        (r"(?:^|[\s(])[a-zäöü]\.$", r"[A-ZÄÖÜ0-9]"),  # z. B., c. 1850
    )
)
"""Points that end no quote if this follows: dates, ordinals, numbers after an abbreviation, German abbreviations."""
_NEXT_LABEL = re.compile(r"(?<=[\w)\]])\s+(?=[A-Z][a-z]+(?:\s[a-z]+){0,2}:\s)")
_LABEL = re.compile(r"[A-Z][^\W\d_]+(?:,?\s[a-z]+){0,3}:\s")
_ROW = re.compile(r"[^:;]{1,60}: [^;]*; [^:;]{1,60}: ")
"""Beginning of a table row with the names of its columns: 'Month: May; Income Tomas: 2480'."""
_LONGEST_ROW = 400
"""Characters of a row that is quoted whole; a longer one holds whole paragraphs."""
_TWO_WORDS = re.compile(r"\w\W*[\s=:;,|]\W*\w")
QUOTED_HEADING = "Quoted from an earlier message"
"""Heading, in a mail, above lines that somebody else wrote."""
_QUOTED_PART = re.compile(rf"^(?:.* › )?{QUOTED_HEADING}$(?:(?!\nFrom: ).)*", re.M | re.S)
_FEWEST_LETTERS, _SHORTEST_WORD = 3, 8
"""Lower bounds on the letters and characters of a quotation."""


class TokenCounter(Protocol):
    """Counts tokens as the reader will; desk_rag.model.prompt.PromptFormat is one."""

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        ...


class SentenceCutter:
    """Cuts text into pieces of about `grain` to twice `grain` tokens, in time linear in the text."""

    def __init__(self, counter: TokenCounter, grain: int) -> None:
        self._counter = counter
        self._grain = grain
        self._splitter = TextSplitter.from_callback(counter.count, grain, trim=False)

    def cut(self, text: str, *, by_line: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (offset, piece); the pieces joined are the text. `by_line` cuts at line ends, as code wants.

        A sentence that is too long by itself is cut inside by semantic-text-splitter (clauses, then words).
        """
        for start, group in _groups(text, _LINE_BREAK if by_line else _SENTENCE_BREAK, least=2 * self._grain):
            if len(group) <= 8 * self._grain and self._counter.count(group) <= 2 * self._grain:
                yield start, group
                continue
            if len(group) > _LONGEST_SENTENCE:
                yield from ((start + offset, piece) for offset, piece in self._cut_data(group))
                continue
            for offset, stretch in _stretches(group):
                for inner, piece in self._cut_stretch(stretch):
                    yield start + offset + inner, piece

    def _cut_data(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield pieces of about one length that end at a blank or comma; looking for clauses takes too long here."""
        for offset, piece in _stretches(text, _CHARACTERS_PER_TOKEN * self._grain, (" ", ",", ";")):
            if self._counter.count(piece) <= 2 * self._grain:
                yield offset, piece
            else:
                yield from ((offset + inner, part) for inner, part in self._fixed(piece))

    def _fixed(self, text: str) -> Iterator[tuple[int, str]]:
        # A character beyond ASCII may be several tokens.
        length = self._grain if text.isascii() else max(2, self._grain // 4)
        return ((start, text[start : start + length]) for start in range(0, len(text), length))

    def _cut_stretch(self, stretch: str) -> Iterator[tuple[int, str]]:
        if any(len(word) > _LONGEST_WORD for word in stretch.split()):
            # Encoded data, minified code: there are no sentences to look for, and looking takes long.
            return self._fixed(stretch)
        return iter(self._splitter.chunk_indices(stretch))


def ends_sentence(text: str) -> bool:
    """Return whether `text` ends a sentence or clause, and not in an abbreviation such as 'Mr.'."""
    return bool(_SENTENCE_END.search(text)) and not _ABBREVIATION.search(text)


def sentences(text: str) -> list[str]:
    """Return the sentences of one paragraph, cut as the embedded reader's training texts were."""
    parts, last = [], 0
    for match in _QUOTED_END.finditer(text):
        parts.append(text[last : match.end()].strip())
        last = match.end()
    if text[last:].strip():
        parts.append(text[last:].strip())
    return parts


def units(text: str) -> list[str]:
    """Return the sentences of `text`; none crosses a line end."""
    return [sentence for line in text.split("\n") if line.strip() for sentence in sentences(line.strip())]


def quotable(text: str) -> list[str]:
    """Return the passages of `text` that an answer may quote, each once and in its exact characters.

    A passage is one sentence within one line, or several if an abbreviation such as 'Mr.' ends the first. It has at
    least two words. Code and tables are quoted line by line.
    """
    return list(_quotable(text))


@lru_cache(maxsize=64)
def _quotable(text: str) -> tuple[str, ...]:
    """See `quotable`; the steps of an answer ask for those of the same few chunks."""
    candidates = [unit for line in text.split("\n") for unit in _units_of_line(line.strip())]
    return tuple(dict.fromkeys(unit for unit in candidates if _TWO_WORDS.search(unit) and _citable(unit)))


def quoted_parts(text: str) -> list[tuple[int, int]]:
    """Return the character ranges of a chunk in which a mail quotes an earlier one."""
    return [match.span() for match in _QUOTED_PART.finditer(text)] if QUOTED_HEADING in text else []


def stands_in(place: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether a character stands in one of the ranges."""
    return any(start <= place < end for start, end in ranges)


def is_quoted(text: str, unit: str) -> bool:
    """Return whether a sentence of a chunk stands only where a mail quotes an earlier one."""
    return stands_in(text.find(unit), quoted_parts(text))


def _citable(unit: str) -> bool:
    if len(unit) < _SHORTEST_WORD and len(unit.split()) < 2:
        return False
    return sum(character.isalnum() for character in unit) >= _FEWEST_LETTERS


def _units_of_line(line: str) -> Iterator[str]:
    """The row of a table whole, so that its first cell stands beside the others; else the sentences of a line."""
    if len(line) <= _LONGEST_ROW and _ROW.match(line):
        yield line
        return
    for part in _labelled(line):
        yield from _whole_sentences(part)


def _labelled(line: str) -> list[str]:
    """The parts of a line that runs several together: 'Present: Ana, Ben Apologies: Gus'."""
    return _NEXT_LABEL.split(line) if _LABEL.match(line) and not _ROW.match(line) else [line]


def _whole_sentences(line: str) -> Iterator[str]:
    start = end = 0
    for sentence in sentences(line):
        end = line.index(sentence, end) + len(sentence)
        if not _goes_on(line[start:end], line[end:].lstrip()):
            yield line[start:end].strip()
            start = end
    if line[start:].strip():
        yield line[start:].strip()


def _goes_on(text: str, following: str) -> bool:
    """Return whether the point at the end of `text` ends no sentence, judged by what stands on both sides of it."""
    if NO_END.search(text):
        return True
    return any(before.search(text) and after.match(following) for before, after in _NO_END_BEFORE)


def _groups(text: str, breaks: re.Pattern[str], least: int) -> Iterator[tuple[int, str]]:
    """(offset, text) of runs of at least `least` characters that end at a break."""
    start = 0
    for match in breaks.finditer(text):
        if match.end() - start < least:
            continue
        before = text[max(start, match.start() - _LOOK_BACK) : match.start()]
        if _ABBREVIATION.search(before) or _goes_on(before, text[match.end() : match.end() + _LOOK_BACK]):
            continue
        yield start, text[start : match.end()]
        start = match.end()
    if start < len(text):
        yield start, text[start:]


def _stretches(
    text: str, longest: int = 800, marks: Sequence[str] = ("\n\n", "\n", ". ", "。", " ")
) -> Iterator[tuple[int, str]]:
    """Yield `text` in stretches of bounded length, cut after the first of `marks` in the second half of each."""
    start = 0
    while len(text) - start > longest:
        places = (text.rfind(mark, start + longest // 2, start + longest) for mark in marks)
        cut = next((place + 1 for place in places if place >= 0), start + longest)
        yield start, text[start:cut]
        start = cut
    yield start, text[start:]

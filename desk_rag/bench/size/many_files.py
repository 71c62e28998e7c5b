"""Write a folder of any number of made-up files in a mix as on a desk: notes, code, tables, PDF, Word, photos."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

_FILES_PER_FOLDER = 60
_LEFT_OUT = 150
"""Number of the most frequent words; real texts have about as many articles and pronouns (store/catalog/words.py)."""
_SYLLABLES = ("ba", "ko", "ri", "ten", "lu", "mar", "sel", "do", "vin", "ga", "per", "mo", "sta", "ne", "fi", "hol")


class MadeUpText:
    """Sentences of made-up words whose frequencies fall as those of a language do (Zipf)."""

    def __init__(self, seed: int, words: int = 40_000) -> None:
        self._random = random.Random(0)  # the same words for every seed
        drawn = (self._word() for _ in range(3 * words))
        self._words = list(dict.fromkeys(drawn))[:words]
        self._random.seed(seed)
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(len(self._words))))

    def words(self, count: int) -> list[str]:
        """Return words, frequent ones more often."""
        return self._random.choices(self._words, cum_weights=self._weights, k=count)

    def question(self, count: int) -> str:
        """Return words for a search, none of the most frequent, which stand for those that a search leaves out."""
        weights = [0.0] * _LEFT_OUT + [1 / (rank + 3) for rank in range(_LEFT_OUT, len(self._words))]
        return " ".join(self._random.choices(self._words, weights=weights, k=count))

    def paragraph(self, sentences: int) -> str:
        """Return that many sentences of 6 to 18 words."""
        return " ".join(" ".join(self.words(self._random.randint(6, 18))).capitalize() + "." for _ in range(sentences))

    def number(self, low: int, high: int) -> int:
        """Return a number."""
        return self._random.randint(low, high)

    def _word(self) -> str:
        return "".join(self._random.choices(_SYLLABLES, k=self._random.randint(1, 4)))


def write_files(folder: Path, count: int, seed: int = 1) -> dict[str, int]:
    """Write `count` files below `folder`, 60 in each subfolder; return how many of each ending. Raises OSError."""
    text, written = MadeUpText(seed), dict.fromkeys((ending for ending, _, _ in _KINDS), 0)
    pattern = [kind for kind in _KINDS for _ in range(kind[1])]
    order = random.Random(seed)
    for number in range(count):
        ending, _, content = order.choice(pattern)
        place = folder / f"part-{number // (_FILES_PER_FOLDER * 40):03}" / f"{number // _FILES_PER_FOLDER:05}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{'-'.join(text.words(2))}-{number}.{ending}").write_bytes(content(text))
        written[ending] += 1
    return written


def _markdown(text: MadeUpText) -> bytes:
    parts = [f"# {' '.join(text.words(3))}\n"]
    parts += [
        f"## {' '.join(text.words(2))}\n\n{text.paragraph(text.number(2, 6))}\n" for _ in range(text.number(1, 5))
    ]
    return "\n".join(parts).encode()


def _plain(text: MadeUpText) -> bytes:
    return "\n\n".join(text.paragraph(text.number(1, 5)) for _ in range(text.number(1, 6))).encode()


def _code(text: MadeUpText) -> bytes:
    functions = [
        f"def {'_'.join(text.words(2))}({', '.join(set(text.words(2)))}):\n"
        f'    """{text.paragraph(1)}"""\n    return {text.number(0, 999)}\n'
        for _ in range(text.number(1, 12))
    ]
    return "\n\n".join(functions).encode()


def _table(text: MadeUpText) -> bytes:
    rows = [f"{text.number(1, 28)}.{text.number(1, 12)}.2025,{' '.join(text.words(3))},{text.number(1, 9000)}"
            for _ in range(text.number(5, 60))]  # fmt: skip
    return "\n".join(["date,what,amount", *rows]).encode()


def _json(text: MadeUpText) -> bytes:
    return json.dumps(
        [{word: text.number(0, 99) for word in text.words(6)} for _ in range(text.number(1, 15))]
    ).encode()


def _page(text: MadeUpText) -> bytes:
    paragraphs = "".join(f"<p>{text.paragraph(3)}</p>" for _ in range(text.number(1, 5)))
    return f"<html><head><title>{' '.join(text.words(2))}</title></head><body>{paragraphs}</body></html>".encode()


def _mail(text: MadeUpText) -> bytes:
    head = f"From: a@example.org\nTo: b@example.org\nSubject: {' '.join(text.words(4))}\n"
    return f"{head}Date: Mon, {text.number(1, 28)} Sep 2025 10:00:00 +0000\n\n{text.paragraph(4)}\n".encode()


def _pdf(text: MadeUpText) -> bytes:
    lines = [" ".join(text.words(10)) for _ in range(text.number(5, 40))]
    drawn = "\n".join(f"({line}) Tj 0 -14 Td" for line in lines)
    stream = f"BT /F1 11 Tf 50 780 Td\n{drawn}\nET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R"
        b" /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 5\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(out + b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % table)


def _word(text: MadeUpText) -> bytes:
    name = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    paragraphs = "".join(f"<w:p><w:r><w:t>{text.paragraph(3)}</w:t></w:r></w:p>" for _ in range(text.number(2, 8)))
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(
            "[Content_Types].xml",
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            f'<Relationship Id="r1" Type="{relations}" Target="word/document.xml"/></Relationships>',
        )
        archive.writestr(
            "word/document.xml", f'<w:document xmlns:w="{name}"><w:body>{paragraphs}</w:body></w:document>'
        )
    return packed.getvalue()


def _photo(text: MadeUpText) -> bytes:
    return b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(text.number(0, 255) for _ in range(2000)) + b"\xff\xd9"


_KINDS: tuple[tuple[str, int, Callable[[MadeUpText], bytes]], ...] = (
    ("md", 26, _markdown), ("txt", 16, _plain), ("py", 14, _code), ("csv", 5, _table), ("json", 6, _json),
    ("html", 6, _page), ("eml", 7, _mail), ("pdf", 6, _pdf), ("docx", 4, _word), ("jpg", 10, _photo),
)  # fmt: skip
"""Endings, their share in percent, and what such a file holds."""

"""Documents that were made to harm whoever reads them, by name."""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_DOCX = (
    '<?xml version="1.0"?>{doctype}<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    "<w:body>{body}</w:body></w:document>"
)
_TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType='
    '"application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"'
    ' Target="word/document.xml"/></Relationships>'
)


def _docx(file: Path, document: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", _TYPES)
        archive.writestr("_rels/.rels", _RELATIONS)
        archive.writestr("word/document.xml", document)


def _zip_bomb(place: Path, chance: random.Random) -> None:
    _docx(place / "bomb.docx", _DOCX.format(doctype="", body=" " * (300 << 20)).encode())


def _billion_laughs(place: Path, chance: random.Random) -> None:
    entities = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    body = "<w:p><w:r><w:t>&a9;</w:t></w:r></w:p>"
    _docx(place / "laughs.docx", _DOCX.format(doctype=f"<!DOCTYPE d [{entities}]>", body=body).encode())


def _deep_html(place: Path, chance: random.Random) -> None:
    depth = chance.choice((5_000, 100_000, 300_000))
    tag = chance.choice(("div", "ul><li", "b", "table><tr><td", "span hidden"))
    (place / "deep.html").write_text(f"<{tag}>" * depth + "text", encoding="utf-8")


def _odd_names(place: Path, chance: random.Random) -> None:
    for name in (b"a\nb.md", b"\x1b[31mred.md", "\u202egnp.md".encode(), b"\xff\xfe.md", b"-rf", b"$(x).md", b"'\".md"):
        with suppress(OSError):  # some file systems want names in UTF-8
            Path(os.fsdecode(os.fsencode(place) + b"/" + name)).write_text("An odd name.", encoding="utf-8")


def _links(place: Path, chance: random.Random) -> None:
    (place / "self.md").symlink_to("self.md")
    (place / "one.md").symlink_to("two.md")
    (place / "two.md").symlink_to("one.md")
    (place / "up").symlink_to("..")
    (place / "gone.md").symlink_to("/nonexistent/x.md")


def _no_files(place: Path, chance: random.Random) -> None:
    os.mkfifo(place / "pipe.md")
    with (place / "sparse.txt").open("wb") as file:
        file.truncate(1 << 30)


def _random_bytes(place: Path, chance: random.Random) -> None:
    for suffix in (".pdf", ".docx", ".html", ".md", ".rst", ".txt", ".csv", ".json"):
        (place / f"noise{suffix}").write_bytes(chance.choice((b"", b"%PDF-1.7\n", b"PK\3\4")) + chance.randbytes(5000))


def _long_lines(place: Path, chance: random.Random) -> None:
    (place / "line.txt").write_text("word " * 400_000, encoding="utf-8")
    (place / "nested.json").write_text("[" * 200_000, encoding="utf-8")


def _many_titles(place: Path, chance: random.Random) -> None:
    (place / "titles.rst").write_text("Title\n=====\n\n" * 20_000, encoding="utf-8")
    (place / "quotes.md").write_text("> " * 50_000 + "x\n" + "*a " * 50_000, encoding="utf-8")


HOSTILE: dict[str, Callable[[Path, random.Random], None]] = {
    "zip bomb": _zip_bomb,
    "billion laughs": _billion_laughs,
    "deep html": _deep_html,
    "odd names": _odd_names,
    "links": _links,
    "no files": _no_files,
    "random bytes": _random_bytes,
    "long lines": _long_lines,
    "many titles": _many_titles,
}

"""Parse OpenDocument text and slides (.odt, .odp): headings, paragraphs, lists and tables in reading order.

The XML is walked here, without recursion: the libraries for it mix comments and footnotes into the words around them
and fail on deep nesting. Deleted text that change tracking keeps, comments and tables of contents are left out.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator

from lxml import etree

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.errors import BrokenDocument

_PREFIXES = {
    "urn:oasis:names:tc:opendocument:xmlns:text:1.0": "text",
    "urn:oasis:names:tc:opendocument:xmlns:table:1.0": "table",
    "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0": "draw",
    "urn:oasis:names:tc:opendocument:xmlns:office:1.0": "office",
    "urn:oasis:names:tc:opendocument:xmlns:presentation:1.0": "presentation",
}
_URIS = {prefix: uri for uri, prefix in _PREFIXES.items()}
_NAME = re.compile(r"\{(?P<uri>[^}]*)\}(?P<name>.*)")
_DROPPED = frozenset({"text:tracked-changes", "office:annotation", "text:table-of-content", "office:forms"})
_OWN_BLOCKS = frozenset({"text:note", "draw:frame", "draw:text-box", "draw:custom-shape"})
"""Elements inside a paragraph that hold paragraphs of their own."""
_PAGE_NUMBERS = frozenset({"text:page-number", "text:page-count"})
_SPACES = {"text:s": " ", "text:tab": " ", "text:line-break": "\n"}


def parse(data: bytes) -> Parsed:
    """Blocks of a text document, or of a presentation with the slide's number as page. Raises BrokenDocument."""
    check_unpacked_size(data, "an OpenDocument file")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if "META-INF/manifest.xml" in names and b"encryption-data" in archive.read("META-INF/manifest.xml"):
                raise BrokenDocument("is encrypted", remedy="Save a copy without a password.")
            content = _root(archive.read("content.xml"))
            meta = _root(archive.read("meta.xml")) if "meta.xml" in names else None
    except (KeyError, etree.XMLSyntaxError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise BrokenDocument("is not an OpenDocument file that can be opened (damaged?)") from error
    builder = Builder()
    builder.set_title((meta.findtext(".//{*}title") if meta is not None else "") or "")
    slides = content.findall(f".//{{{_URIS['draw']}}}page")
    for number, slide in enumerate(slides, start=1):
        builder.heading(1, _attribute(slide, "draw:name") or f"Slide {number}", page=number, opens_chunk=True)
        notes = slide.find(f"{{{_URIS['presentation']}}}notes")
        if notes is not None:
            slide.remove(notes)
        _add_blocks(builder, slide, number)
        words = " ".join(filter(None, (_inline_text(part).strip() for part in _paragraphs(notes)))) if notes else ""
        builder.add(f"Notes: {words}" if words else "", BlockKind.PARAGRAPH, page=number)
    if not slides:
        _add_blocks(builder, content, None)
    return builder.done()


def _root(data: bytes) -> etree._Element:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True, remove_comments=True)
    return etree.fromstring(data, parser)


def _add_blocks(builder: Builder, root: etree._Element, page: int | None) -> None:
    pending = [(child, False) for child in reversed(root)]
    while pending:
        element, in_list = pending.pop()
        tag = _tag(element)
        if tag in ("text:h", "text:p"):
            text = _inline_text(element)
            if tag == "text:h":
                builder.heading(_level(element), text, page=page)
            else:
                builder.add(text, BlockKind.LIST if in_list else BlockKind.PARAGRAPH, page=page)
            pending.extend((inner, False) for inner in reversed(list(_inner(element, _OWN_BLOCKS))))
        elif tag == "table:table":
            _add_table(builder, element, page)
        elif tag not in _DROPPED and tag != "text:note-citation":
            pending.extend((child, in_list or tag == "text:list-item") for child in reversed(element))


def _add_table(builder: Builder, table: etree._Element, page: int | None) -> None:
    rows = []
    for row in _inner(table, frozenset({"table:table-row"})):
        cells = [cell for cell in row if _tag(cell) in ("table:table-cell", "table:covered-table-cell")]
        texts = [" ".join(" ".join(map(_inline_text, _paragraphs(cell))).split()) for cell in cells]
        if any(texts):
            rows.append(texts)
    marked = table.find(f"{{{_URIS['table']}}}table-header-rows") is not None
    for words in table_rows(rows, marked or None) if rows else ():
        builder.add(words, BlockKind.TABLE, page=page)


def _paragraphs(root: etree._Element) -> Iterator[etree._Element]:
    """Yield the paragraphs below `root`, those inside notes, frames and inner tables of a cell among them."""
    pending = list(reversed(root))
    while pending:
        element = pending.pop()
        tag = _tag(element)
        if tag in ("text:p", "text:h"):
            yield element
            pending.extend(reversed(list(_inner(element, _OWN_BLOCKS))))
        elif tag not in _DROPPED:
            pending.extend(reversed(element))


def _inner(root: etree._Element, tags: frozenset[str]) -> Iterator[etree._Element]:
    """Yield the outermost elements below `root` that have one of these tags, in order."""
    pending = list(reversed(root))
    while pending:
        element = pending.pop()
        tag = _tag(element)
        if tag in tags:
            yield element
        elif tag not in _DROPPED:
            pending.extend(reversed(element))


def _inline_text(paragraph: etree._Element) -> str:
    """Return a paragraph's own words, without its comments, notes and frames."""
    parts = [paragraph.text or ""]
    pending: list[etree._Element | str] = list(reversed(_with_tails(paragraph)))
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        tag = _tag(item)
        parts.append(_SPACES.get(tag, ""))
        if tag not in _DROPPED and tag not in _OWN_BLOCKS and tag not in _PAGE_NUMBERS:
            parts.append(item.text or "")
            pending.extend(reversed(_with_tails(item)))
    return "".join(parts)


def _with_tails(element: etree._Element) -> list[etree._Element | str]:
    return [part for child in element for part in (child, child.tail or "")]


def _tag(element: etree._Element) -> str:
    """The element's name with the usual prefix, 'text:p'; '' for other namespaces."""
    match = _NAME.match(element.tag) if isinstance(element.tag, str) else None
    prefix = _PREFIXES.get(match["uri"], "") if match else ""
    return f"{prefix}:{match['name']}" if match and prefix else ""


def _attribute(element: etree._Element, name: str) -> str:
    prefix, _, local = name.partition(":")
    return str(element.get(f"{{{_URIS[prefix]}}}{local}") or "")


def _level(heading: etree._Element) -> int:
    level = _attribute(heading, "text:outline-level")
    return max(1, int(level)) if level.isdecimal() else 1

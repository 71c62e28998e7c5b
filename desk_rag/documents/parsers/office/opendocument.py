"""Parse OpenDocument text and slides (.odt, .odp): headings, paragraphs, lists, tables and charts in reading order.

Paragraphs of a text are numbered, a table counted as one. Each text that stands in headers or footers is read once.

The XML is walked here, without recursion: the libraries for it mix comments and footnotes into the words around them
and fail on deep nesting. Deleted text that change tracking keeps, comments and tables of contents are left out.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping

from lxml import etree

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Parsed, table_rows
from desk_rag.documents.parsers.office.charts import add_chart
from desk_rag.documents.parsers.office.containers import check_unpacked_size, is_page_number
from desk_rag.errors import BrokenDocument

_PREFIXES = {
    "urn:oasis:names:tc:opendocument:xmlns:text:1.0": "text",
    "urn:oasis:names:tc:opendocument:xmlns:table:1.0": "table",
    "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0": "draw",
    "urn:oasis:names:tc:opendocument:xmlns:office:1.0": "office",
    "urn:oasis:names:tc:opendocument:xmlns:presentation:1.0": "presentation",
    "urn:oasis:names:tc:opendocument:xmlns:style:1.0": "style",
    "http://www.w3.org/1999/xlink": "xlink",
}
_URIS = {prefix: uri for uri, prefix in _PREFIXES.items()}
_NAME = re.compile(r"\{(?P<uri>[^}]*)\}(?P<name>.*)")
_DROPPED = frozenset({"text:tracked-changes", "office:annotation", "text:table-of-content", "office:forms"})
_OWN_BLOCKS = frozenset({"text:note", "draw:frame", "draw:text-box", "draw:custom-shape"})
"""Elements inside a paragraph that hold paragraphs of their own."""
_PAGE_NUMBERS = frozenset({"text:page-number", "text:page-count"})
_MOST_COLUMNS = 60
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
            styles = archive.read("styles.xml") if "styles.xml" in names else b"<none/>"
            objects = {_attribute(place, "xlink:href") for place in content.iter(f"{{{_URIS['draw']}}}object")}
            parts = {name: f"{name.removeprefix('./')}/content.xml" for name in objects}
            charts = {name: archive.read(part) for name, part in parts.items() if part in names}
    except (KeyError, etree.XMLSyntaxError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise BrokenDocument("is not an OpenDocument file that can be opened (damaged?)") from error
    builder = Builder()
    builder.set_title((meta.findtext(".//{*}title") if meta is not None else "") or "")
    slides = content.findall(f".//{{{_URIS['draw']}}}page")
    for number, slide in enumerate(slides, start=1):
        builder.heading(1, _attribute(slide, "draw:name") or f"Slide {number}", page=number, opens_chunk=True)
        notes = slide.find(f"{{{_URIS['presentation']}}}notes")
        spoken = [_inline_text(part).strip() for part in _paragraphs(notes)] if notes is not None else []
        if notes is not None:
            slide.remove(notes)
        _add_blocks(builder, slide, number, charts)
        words = " ".join(filter(None, spoken))
        builder.add(f"Notes: {words}" if words else "", BlockKind.PARAGRAPH, page=number)
    if not slides:
        _add_running_text(builder, styles, "header")
        _add_blocks(builder, content, None, charts)
        builder.end_paragraphs()
        _add_running_text(builder, styles, "footer")
    return builder.done()


def _root(data: bytes) -> etree._Element:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=True, remove_comments=True)
    return etree.fromstring(data, parser)


def _add_running_text(builder: Builder, styles: bytes, kind: str) -> None:
    """Add each text that stands in headers or footers once, without page numbers; nothing from damaged styles."""
    seen: set[str] = set()
    try:
        root = _root(styles)
    except etree.XMLSyntaxError:
        return
    places = (f"{{{_URIS['style']}}}{kind}{pages}" for pages in ("-first", "", "-left"))
    for part in root.iter(*places):
        for paragraph in _paragraphs(part):
            text = " ".join(_inline_text(paragraph).split())
            if text not in seen and not is_page_number(text):
                seen.add(text)
                builder.add(text, BlockKind.PARAGRAPH)


def _add_blocks(builder: Builder, root: etree._Element, page: int | None, charts: Mapping[str, bytes]) -> None:
    """Add what stands below an element; `charts` holds the XML of charts by their address."""
    pending = [(child, False, page is None) for child in reversed(root)]
    while pending:
        element, in_list, is_counted = pending.pop()
        tag = _tag(element)
        if is_counted and tag in ("text:h", "text:p", "table:table"):
            builder.next_paragraph()
        if tag in ("text:h", "text:p"):
            text = _inline_text(element)
            if tag == "text:h":
                builder.heading(_level(element), text, page=page)
            else:
                builder.add(text, BlockKind.LIST if in_list else BlockKind.PARAGRAPH, page=page)
            pending.extend((inner, False, False) for inner in reversed(list(_inner(element, _OWN_BLOCKS))))
        elif tag == "table:table":
            _add_table(builder, element, page)
        elif tag == "draw:object" and _attribute(element, "xlink:href") in charts:
            add_chart(builder, charts[_attribute(element, "xlink:href")], page)
        elif tag not in _DROPPED and tag != "text:note-citation":
            in_list |= tag == "text:list-item"
            pending.extend((child, in_list, is_counted) for child in reversed(element))


def _add_table(builder: Builder, table: etree._Element, page: int | None) -> None:
    rows: list[list[str]] = []
    spans: dict[int, tuple[int, str]] = {}  # rows still to come and text of the cell that covers a column
    for row in _inner(table, frozenset({"table:table-row"})):
        texts: list[str] = []
        for cell in row:
            if _tag(cell) not in ("table:table-cell", "table:covered-table-cell"):
                continue
            text = " ".join(" ".join(map(_inline_text, _paragraphs(cell))).split())
            left, above = spans.get(len(texts), (0, ""))
            if left:
                spans[len(texts)] = left - 1, above
                text = text or above
            elif (height := _count(cell, "table:number-rows-spanned")) > 1:
                spans[len(texts)] = height - 1, text
            texts += [text] * min(_count(cell, "table:number-columns-repeated"), _MOST_COLUMNS)
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


def _count(element: etree._Element, name: str) -> int:
    """Return a number of rows or columns; 1 where none is written."""
    written = _attribute(element, name)
    return max(1, int(written)) if written.isdecimal() else 1


def _level(heading: etree._Element) -> int:
    level = _attribute(heading, "text:outline-level")
    return max(1, int(level)) if level.isdecimal() else 1

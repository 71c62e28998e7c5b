"""Parse e-books (.epub): chapters in reading order; the page is the chapter's number in the book's spine.

Read with zipfile and the HTML parser: the EPUB libraries for Python carry licences that a permissive tool cannot ship.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
import zlib
from urllib.parse import unquote

from lxml import etree

from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.encoding import decode
from desk_rag.documents.parsers.markup.html import add_html
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.errors import BrokenDocument, UnsupportedDocument

_CONTAINER = "META-INF/container.xml"
_PAGE_TYPES = ("application/xhtml+xml", "text/html")
_EMPTY_ELEMENT = re.compile(r"<(?!(?:br|hr|img|meta|link|input|col|wbr)\b)([a-zA-Z][\w:-]*)(\s[^<>]*?)?/>")
"""Elements that XHTML may close at once; an HTML parser takes '<title/>' for the beginning of an endless title."""


def parse(data: bytes) -> Parsed:
    """Chapters as sections. Raises BrokenDocument for a damaged or copy-protected book."""
    check_unpacked_size(data, "an e-book")
    builder = Builder()
    unread = 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as book:
            if "META-INF/encryption.xml" in book.namelist() and "META-INF/rights.xml" in book.namelist():
                raise BrokenDocument("is a copy-protected e-book")
            package_path, package = _package(book)
            title = package.findtext(".//{*}metadata/{*}title") or ""
            builder.set_title(title)
            for number, name in enumerate(_spine(package, posixpath.dirname(package_path)), start=1):
                text = _chapter(book, name)
                unread += text is None
                builder.open_chunk()
                add_html(builder, text or "", page=number)
    except (KeyError, etree.XMLSyntaxError, zipfile.BadZipFile, RuntimeError, ValueError) as error:
        raise BrokenDocument("is not an e-book that can be opened (damaged?)") from error
    chapters = "1 chapter is" if unread == 1 else f"{unread} chapters are"
    return builder.done(f"{chapters} missing or damaged" if unread else "")


def _chapter(book: zipfile.ZipFile, name: str) -> str | None:
    """Return the HTML of a chapter; None for one that is missing or damaged."""
    try:
        text, _ = decode(book.read(name)) if book.getinfo(name).file_size else ("", "")
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, UnsupportedDocument):
        return None
    return _EMPTY_ELEMENT.sub(r"<\1\2></\1>", text)


def _package(book: zipfile.ZipFile) -> tuple[str, etree._Element]:
    """Path and root element of the package document that the container names."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False, recover=True)
    container = etree.fromstring(book.read(_CONTAINER), parser)
    root_file = container.find(".//{*}rootfile")
    if root_file is None:
        raise KeyError("rootfile")
    path = str(root_file.get("full-path"))
    return path, etree.fromstring(book.read(path), parser)


def _spine(package: etree._Element, folder: str) -> list[str]:
    """Archive names of the chapters, in reading order."""
    items = {str(item.get("id")): item for item in package.iterfind(".//{*}manifest/{*}item")}
    chapters = []
    for reference in package.iterfind(".//{*}spine/{*}itemref"):
        item = items.get(str(reference.get("idref")))
        if item is not None and item.get("media-type") in _PAGE_TYPES:
            chapters.append(posixpath.normpath(posixpath.join(folder, unquote(str(item.get("href"))))))
    return chapters

"""E-books (.epub): chapters in reading order; the page is the chapter's number in the book's spine.

Read with zipfile and the HTML parser: the EPUB libraries for Python carry licences that a permissive tool cannot ship.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
from urllib.parse import unquote

from lxml import etree

from desk_rag.documents.encoding import decode
from desk_rag.documents.parsers.building import Builder, Parsed
from desk_rag.documents.parsers.markup.html import add_html
from desk_rag.documents.parsers.office.containers import check_unpacked_size
from desk_rag.errors import BrokenDocument

_CONTAINER = "META-INF/container.xml"
_PAGE_TYPES = ("application/xhtml+xml", "text/html")


def parse(data: bytes) -> Parsed:
    """Chapters as sections. Raises BrokenDocument for a damaged or copy-protected book."""
    check_unpacked_size(data, "an e-book")
    builder = Builder()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as book:
            if "META-INF/encryption.xml" in book.namelist() and "META-INF/rights.xml" in book.namelist():
                raise BrokenDocument("is a copy-protected e-book")
            package_path, package = _package(book)
            title = package.findtext(".//{*}metadata/{*}title") or ""
            builder.set_title(title)
            for number, name in enumerate(_spine(package, posixpath.dirname(package_path)), start=1):
                if name in book.NameToInfo:
                    text, _ = decode(book.read(name))
                    add_html(builder, text, page=number)
    except (KeyError, etree.XMLSyntaxError, zipfile.BadZipFile, RuntimeError, ValueError) as error:
        raise BrokenDocument("is not an e-book that can be opened (damaged?)") from error
    return builder.done()


def _package(book: zipfile.ZipFile) -> tuple[str, etree._Element]:
    """Path and root element of the package document that the container names."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
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

"""Tell a file's format: by its name first, corrected by its first bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from desk_rag.documents.archives import is_archive
from desk_rag.errors import BrokenDocument, UnsupportedDocument


class Format(Enum):
    """A family of formats; the value is the name of its parser."""

    MARKDOWN = "markdown"
    TEXT = "text"
    RST = "rst"
    CODE = "code"
    HTML = "html"
    PDF = "pdf"
    DOCX = "docx"
    TABLE = "table"
    MAIL = "mail"
    MAILBOX = "mailbox"
    OUTLOOK = "outlook"
    WEB_ARCHIVE = "mhtml"
    SLIDES = "pptx"
    SHEETS = "spreadsheet"
    OPEN_DOCUMENT = "odt"
    OPEN_SLIDES = "odp"
    RICH_TEXT = "rtf"
    EBOOK = "epub"
    NOTEBOOK = "notebook"
    CALENDAR = "calendar"
    CONTACTS = "contacts"
    ORG = "org"
    LATEX = "latex"
    SUBTITLES = "subtitles"
    BIBLIOGRAPHY = "bibliography"
    CANVAS = "canvas"
    ASCIIDOC = "asciidoc"
    TEXTILE = "textile"
    PICTURE = "picture"
    JSON = "json"
    YAML = "yaml"
    TOML = "toml"
    XML = "xml"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class PlaceUnits:
    """Names of places in a format: what its pages and its lines are."""

    page: str = "p."
    pages: str = "pp."
    line: str = "line"
    lines: str = "lines"
    names_section: bool = False
    """True if the outermost heading belongs to the place: the sheet, the message, the event."""
    inside: str = ""
    """Mark before that heading where it is a file with pages of its own: '!/' in an archive."""
    has_attachments: bool = False
    """True if files with places of their own are attached to what that heading names."""


_PARAGRAPHS = PlaceUnits(line="paragraph", lines="paragraphs")
_PLACE_UNITS = {
    **dict.fromkeys((Format.DOCX, Format.OPEN_DOCUMENT, Format.RICH_TEXT), _PARAGRAPHS),
    Format.CANVAS: PlaceUnits(line="card", lines="cards"),
    Format.SLIDES: PlaceUnits("slide", "slides"),
    Format.OPEN_SLIDES: PlaceUnits("slide", "slides"),
    Format.SHEETS: PlaceUnits("sheet", "sheets", "row", "rows", names_section=True),
    Format.NOTEBOOK: PlaceUnits("cell", "cells"),
    Format.EBOOK: PlaceUnits("section", "sections", names_section=True),
    Format.MAIL: PlaceUnits(names_section=True, has_attachments=True),
    Format.OUTLOOK: PlaceUnits(names_section=True, has_attachments=True),
    Format.MAILBOX: PlaceUnits("message", "messages", names_section=True, has_attachments=True),
    Format.CALENDAR: PlaceUnits("entry", "entries", names_section=True),
    Format.CONTACTS: PlaceUnits("entry", "entries", names_section=True),
    Format.ARCHIVE: PlaceUnits(names_section=True, inside="!/"),
}
_CODE_SUFFIXES = """
    py pyi pyx js mjs cjs jsx ts tsx java c h cc cpp cxx hpp hh cs go rs rb php sh bash zsh fish ps1 bat sql cfg
    conf properties kt kts swift scala lua r pl pm m mm jl ex exs erl hrl hs ml mli clj cljs dart groovy gradle vue
    svelte css scss less xsl proto thrift graphql tf hcl cmake mk nix vim el lisp scm zig nim d f90 f95 asm s v sv
    vhd tcl awk sed diff patch service desktop
"""
_CODE_NAMES = """
    makefile gnumakefile dockerfile containerfile jenkinsfile vagrantfile rakefile gemfile procfile justfile pipfile
    cmakelists.txt
"""
_TEXT_NAMES = "readme license licence copying authors changelog changes news todo notes install contributing notice"
_BY_SUFFIX: dict[str, Format] = {
    **dict.fromkeys(_CODE_SUFFIXES.split(), Format.CODE),
    **dict.fromkeys(("md", "markdown", "mdown", "mkd", "mdx"), Format.MARKDOWN),
    **dict.fromkeys(("txt", "text", "log", "taskpaper", "fountain", "nfo"), Format.TEXT),
    **dict.fromkeys(("rst", "rest"), Format.RST),
    **dict.fromkeys(("html", "htm", "xhtml"), Format.HTML),
    **dict.fromkeys(("csv", "tsv", "tab"), Format.TABLE),
    "pdf": Format.PDF,
    **dict.fromkeys(("docx", "docm", "dotx", "dotm"), Format.DOCX),
    **dict.fromkeys(("eml", "emlx"), Format.MAIL),
    **dict.fromkeys(("mbox", "mbx"), Format.MAILBOX),
    "msg": Format.OUTLOOK,
    **dict.fromkeys(("mhtml", "mht"), Format.WEB_ARCHIVE),
    **dict.fromkeys(("pptx", "pptm", "ppsx", "ppsm", "potx", "potm"), Format.SLIDES),
    **dict.fromkeys(("xlsx", "xlsm", "xlsb", "xltx", "xltm", "xls", "ods", "ots"), Format.SHEETS),
    **dict.fromkeys(("odt", "ott"), Format.OPEN_DOCUMENT),
    **dict.fromkeys(("odp", "otp"), Format.OPEN_SLIDES),
    "rtf": Format.RICH_TEXT,
    "epub": Format.EBOOK,
    "ipynb": Format.NOTEBOOK,
    **dict.fromkeys(("ics", "ical", "ifb"), Format.CALENDAR),
    **dict.fromkeys(("vcf", "vcard"), Format.CONTACTS),
    "org": Format.ORG,
    **dict.fromkeys(("tex", "ltx", "latex"), Format.LATEX),
    **dict.fromkeys(("srt", "vtt"), Format.SUBTITLES),
    "bib": Format.BIBLIOGRAPHY,
    "canvas": Format.CANVAS,
    **dict.fromkeys(("adoc", "asciidoc"), Format.ASCIIDOC),
    "textile": Format.TEXTILE,
    **dict.fromkeys(("json", "jsonl", "ndjson", "json5", "jsonc", "geojson", "webmanifest"), Format.JSON),
    **dict.fromkeys(("yaml", "yml"), Format.YAML),
    **dict.fromkeys(("toml", "ini"), Format.TOML),
    **dict.fromkeys(("xml", "gpx", "kml", "opml", "rss", "atom"), Format.XML),
}
_IN_LINES = frozenset(
    {Format.MARKDOWN, Format.TEXT, Format.RST, Format.CODE, Format.TABLE, Format.ORG, Format.LATEX, Format.SUBTITLES,
     Format.BIBLIOGRAPHY, Format.ASCIIDOC, Format.TEXTILE, Format.JSON, Format.YAML, Format.TOML, Format.XML}
)  # fmt: skip
_BY_NAME: dict[str, Format] = {
    **dict.fromkeys(_CODE_NAMES.split(), Format.CODE),
    **dict.fromkeys(_TEXT_NAMES.split(), Format.TEXT),
    "winmail.dat": Format.OUTLOOK,
}
KIND_NOT_READ = "not a kind of file that desk-rag reads"
_UNREAD_KINDS = {
    "images": "png jpg jpeg gif webp bmp tif tiff heic heif svg ico raw cr2 nef arw dng psd xcf",
    "audio": "mp3 wav flac ogg oga m4a aac wma opus aiff mid midi",
    "video": "mp4 mkv avi mov webm wmv m4v mpg mpeg 3gp flv",
    "archives": "zip tar gz tgz bz2 xz zst 7z rar jar war lz4 cab deb rpm apk whl iso img vmdk vdi qcow2 dmg",
    "old Office and iWork files": "doc dot ppt pps pages numbers key",
    "other documents": "mobi azw azw3 djvu ps eps xps one pst",
    "programs": "exe dll so dylib bin o a lib class pyc pyo wasm msi",
    "databases and data files": "db sqlite sqlite3 mdb accdb dbf parquet feather arrow npy npz pkl h5 hdf5 mat",
    "fonts": "ttf otf woff woff2 eot",
    "model weights": "safetensors gguf pt pth ckpt onnx",
}
_UNREAD_BY_SUFFIX = {suffix: kind for kind, suffixes in _UNREAD_KINDS.items() for suffix in suffixes.split()}
_ZIP_CONTENTS = (
    (b"word/document.xml", Format.DOCX),
    (b"ppt/presentation.xml", Format.SLIDES),
    (b"xl/workbook", Format.SHEETS),
    (b"application/vnd.oasis.opendocument.text", Format.OPEN_DOCUMENT),
    (b"application/vnd.oasis.opendocument.presentation", Format.OPEN_SLIDES),
    (b"application/vnd.oasis.opendocument.spreadsheet", Format.SHEETS),
    (b"application/epub+zip", Format.EBOOK),
    (b"META-INF/container.xml", Format.EBOOK),
)
_BINARY_FORMATS = frozenset({Format.PDF, Format.OUTLOOK, *(read_as for _, read_as in _ZIP_CONTENTS)})
_HEADER = rb"[A-Za-z][\w-]*: [^\r\n]*(?:\r?\n[ \t][^\r\n]*)*\r?\n"
_MESSAGE_HEADERS = re.compile(rb"(?:" + _HEADER + rb"){3}")
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))
_ZIP = b"PK\x03\x04"
_TNEF = b"\x78\x9f\x3e\x22"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MAILBOX_NAMES = frozenset({"inbox", "sent", "drafts", "templates", "archives", "junk", "trash"})
"""Names of Thunderbird's mailboxes, which have no ending."""
_IN_MAILDIR = re.compile(r"\d{9,}\.[^.]+\.")
"""Beginning of the name of a message in a Maildir: a time, an id, a machine."""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
"""The stream that holds a .docx, .xlsx or .pptx file with a password inside its OLE container."""


def format_of_name(name: str) -> Format | None:
    """The format a file's name promises; None where only its content can tell."""
    path = PurePath(name)
    known = _BY_NAME.get(path.name.lower())
    return known or _BY_SUFFIX.get(path.suffix.lower().removeprefix("."))


def readable_in_part(name: str) -> bool:
    """True if the beginning of such a file can be read without its end."""
    return format_of_name(name) in _IN_LINES


def place_units(name: str) -> PlaceUnits:
    """Return the names of places in a file of this name."""
    promised = format_of_name(name) or (Format.MAIL if _IN_MAILDIR.match(name) else None)
    if promised is None and name.lower() in _MAILBOX_NAMES:
        promised = Format.MAILBOX
    if is_archive(name):
        promised = Format.ARCHIVE
    return PlaceUnits() if promised is None else _PLACE_UNITS.get(promised, PlaceUnits())


def may_have_attachments(name: str) -> bool:
    """Return whether a file of this name is a mail or a mailbox."""
    return place_units(name).has_attachments


def unread_kind(name: str) -> str:
    """Return the user's word for files of a kind that is never read, such as 'images'; '' for all other names."""
    return _UNREAD_BY_SUFFIX.get(PurePath(name).suffix.lower().removeprefix("."), "")


def format_of_content(data: bytes, promised: Format | None) -> Format:
    """The format the bytes really have, given the one the name promised, if any.

    Raises UnsupportedDocument for binary content under a text name, BrokenDocument for a container we cannot open.
    """
    if b"%PDF-" in data[:1024]:
        return Format.PDF
    if data.startswith(_ZIP):
        return _format_of_zip(data, promised)
    if data.startswith(_TNEF):
        return Format.OUTLOOK
    if data.startswith(_OLE):
        if _ENCRYPTED in data and promised is not Format.OUTLOOK:  # a message may carry such a file
            raise BrokenDocument("is encrypted", remedy="Save a copy without a password.")
        if promised in (Format.OUTLOOK, Format.SHEETS):
            return promised
        raise BrokenDocument(
            "is an old or password-protected Office file", remedy="Save it as .docx, .xlsx or .pptx without a password."
        )
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"{\\rtf"):
        return Format.RICH_TEXT
    if promised in _BINARY_FORMATS and looks_binary(data):
        raise BrokenDocument(f"is not a {promised.value} file, whatever its name says")
    looks_html = head.lower().startswith((b"<!doctype html", b"<html"))
    if promised is None or promised in _BINARY_FORMATS or promised is Format.RICH_TEXT:
        return Format.HTML if looks_html else _format_of_text(data)
    is_page = looks_html or (promised is Format.XML and b"<html" in head)
    return Format.HTML if is_page and promised in (Format.TEXT, Format.XML) else promised


def _format_of_zip(data: bytes, promised: Format | None) -> Format:
    """Tell a container's format by its members' names and its media type, which is hardly ever compressed."""
    for mark, read_as in _ZIP_CONTENTS:
        if mark in data:
            return read_as
    if promised in (Format.OPEN_DOCUMENT, Format.OPEN_SLIDES, Format.SHEETS) and b"content.xml" in data:
        return promised
    raise UnsupportedDocument("is damaged, or no document: it is a ZIP archive without a document in it")


def _format_of_text(data: bytes) -> Format:
    """The format of text whose name says nothing."""
    head = data[:4096]
    if head.startswith(b"From ") and _MESSAGE_HEADERS.match(head.partition(b"\n")[2]):
        return Format.MAILBOX
    if _MESSAGE_HEADERS.match(head) and re.search(rb"(?im)^(?:From|Message-ID|Received): ", head):
        return Format.MAIL
    if head.startswith(b"BEGIN:VCALENDAR"):
        return Format.CALENDAR
    if head.startswith(b"BEGIN:VCARD"):
        return Format.CONTACTS
    if head.startswith(b"<?xml"):
        return Format.XML
    if head.startswith((b"{", b"[")):
        return Format.JSON  # what is none is read as code
    if head.startswith(b"#!"):
        return Format.CODE
    return Format.TEXT


def looks_binary(data: bytes) -> bool:
    """True if the first 64 KiB hold NUL bytes or control characters in a way that no text does."""
    sample = data[: 64 * 1024]
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")) or utf16_without_mark(sample):
        return False
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    return sample.count(0) * 300 > len(sample) or controls * 25 > len(sample)


def utf16_without_mark(data: bytes) -> str:
    """'utf-16-le' or 'utf-16-be' when the NULs stand where that encoding of Latin text puts them, else ''."""
    sample = data[:4096]
    half = len(sample) // 2
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if half < 4 or max(even, odd) * 10 < half * 4 or min(even, odd) * 50 > half:
        return ""
    return "utf-16-le" if odd > even else "utf-16-be"

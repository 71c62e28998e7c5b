"""Which format a file has: by its name first, corrected by its first bytes.

Knows suffixes and magic numbers; opens no file and runs no parser.
"""

from __future__ import annotations

from enum import Enum
from pathlib import PurePath

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


_CODE_SUFFIXES = """
    py pyi pyx js mjs cjs jsx ts tsx java c h cc cpp cxx hpp hh cs go rs rb php sh bash zsh fish ps1 bat sql toml
    yaml yml json jsonl json5 ini cfg conf properties kt kts swift scala lua r pl pm m mm jl ex exs erl hrl hs ml
    mli clj cljs dart groovy gradle vue svelte css scss less xml xsl proto thrift graphql tf hcl cmake mk nix vim el
    lisp scm zig nim d f90 f95 asm s v sv vhd tcl awk sed diff patch service desktop
"""
_CODE_NAMES = """
    makefile gnumakefile dockerfile containerfile jenkinsfile vagrantfile rakefile gemfile procfile justfile pipfile
    cmakelists.txt
"""
_TEXT_NAMES = "readme license licence copying authors changelog changes news todo notes install contributing notice"
_BY_SUFFIX: dict[str, Format] = {
    **dict.fromkeys(_CODE_SUFFIXES.split(), Format.CODE),
    **dict.fromkeys(("md", "markdown", "mdown", "mkd", "mdx"), Format.MARKDOWN),
    **dict.fromkeys(("txt", "text", "log", "org", "adoc", "asciidoc", "tex", "nfo"), Format.TEXT),
    **dict.fromkeys(("rst", "rest"), Format.RST),
    **dict.fromkeys(("html", "htm", "xhtml"), Format.HTML),
    **dict.fromkeys(("csv", "tsv", "tab"), Format.TABLE),
    "pdf": Format.PDF,
    "docx": Format.DOCX,
}
_IN_LINES = frozenset({Format.MARKDOWN, Format.TEXT, Format.RST, Format.CODE, Format.TABLE})
_BY_NAME: dict[str, Format] = {
    **dict.fromkeys(_CODE_NAMES.split(), Format.CODE),
    **dict.fromkeys(_TEXT_NAMES.split(), Format.TEXT),
}
KIND_NOT_READ = "not a kind of file that desk-rag reads"
_UNREAD_KINDS = {
    "mail": "eml mbox msg pst emlx",
    "calendars and contacts": "ics vcf",
    "slides": "pptx ppt odp key",
    "spreadsheets": "xlsx xls ods numbers",
    "other office documents": "doc odt rtf pages",
    "e-books": "epub mobi azw3 djvu",
    "notebooks": "ipynb",
    "images": "jpg jpeg png gif webp bmp tif tiff heic svg raw psd ico",
    "audio and video": "mp3 wav flac ogg m4a opus mp4 mkv mov avi webm",
    "archives": "zip tar gz tgz bz2 xz 7z rar zst iso dmg",
}
_UNREAD_BY_SUFFIX = {suffix: kind for kind, suffixes in _UNREAD_KINDS.items() for suffix in suffixes.split()}
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))
_ZIP = b"PK\x03\x04"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def format_of_name(name: str) -> Format | None:
    """The format a file's name promises; None for a name that promises nothing we read."""
    path = PurePath(name)
    known = _BY_NAME.get(path.name.lower())
    return known or _BY_SUFFIX.get(path.suffix.lower().removeprefix("."))


def readable_in_part(name: str) -> bool:
    """Whether the beginning of such a file can be read without its end."""
    return format_of_name(name) in _IN_LINES
def unread_kind(name: str) -> str:
    """What a user would call files of a kind that is not read: 'mail', 'images', else 'other kinds'."""
    return _UNREAD_BY_SUFFIX.get(PurePath(name).suffix.lower().removeprefix("."), "other kinds")


def format_of_content(data: bytes, promised: Format) -> Format:
    """The format the bytes really have, given the one the name promised.

    Raises UnsupportedDocument for binary content under a text name, BrokenDocument for a container we cannot open.
    """
    if b"%PDF-" in data[:1024]:
        return Format.PDF
    if data.startswith(_ZIP):
        if b"word/document.xml" in data:
            return Format.DOCX
        raise UnsupportedDocument("is a ZIP archive without a Word document in it")
    if data.startswith(_OLE):
        raise BrokenDocument(
            "is an old or password-protected Office file", remedy="Save it as .docx without a password."
        )
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    looks_html = head.startswith((b"<!doctype html", b"<html"))
    if promised in (Format.PDF, Format.DOCX):
        if looks_binary(data):
            raise BrokenDocument(f"is not a {promised.value} file, whatever its name says")
        return Format.HTML if looks_html else Format.TEXT
    return Format.HTML if looks_html and promised is Format.TEXT else promised


def looks_binary(data: bytes) -> bool:
    """Whether the first 64 KiB hold NUL bytes or control characters in a way that no text does."""
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

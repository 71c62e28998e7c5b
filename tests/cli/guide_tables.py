"""Write the parts of the guides that the code already holds: settings, formats, left-out names, exit codes.

`python -m tests.cli.guide_tables` brings `assets/guides` up to date; tests/cli/test_guides.py fails where it is not.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from desk_rag.config import Settings
from desk_rag.documents import discovery, formats
from desk_rag.documents.formats import Format
from desk_rag.documents.rules import sensitive
from desk_rag.errors import EXIT_CODES
from desk_rag.tui.keys.actions import FIXED_KEYS, KEY_ACTIONS
from desk_rag.tui.keys.keymap import shown_key
from desk_rag.tui.management.settings_list import docstrings

GUIDES = Path(__file__).resolve().parent.parent.parent / "assets" / "guides"
_EXACTNESS = Path(__file__).resolve().parent.parent.parent / "desk_rag" / "bench" / "EXACTNESS.md"
_WIDTH = 100
_DIFFERS_BY_SYSTEM = "data_dir"
_FORMAT_NAMES = {
    Format.MARKDOWN: "Markdown",
    Format.TEXT: "plain text",
    Format.RST: "reStructuredText",
    Format.CODE: "source code and other settings",
    Format.HTML: "HTML",
    Format.PDF: "PDF with a text layer",
    Format.DOCX: "Word",
    Format.TABLE: "tables",
    Format.MAIL: "mail",
    Format.MAILBOX: "mailboxes",
    Format.OUTLOOK: "Outlook messages",
    Format.WEB_ARCHIVE: "saved web pages",
    Format.SLIDES: "PowerPoint",
    Format.SHEETS: "spreadsheets",
    Format.OPEN_DOCUMENT: "OpenDocument text",
    Format.OPEN_SLIDES: "OpenDocument slides",
    Format.RICH_TEXT: "Rich Text",
    Format.EBOOK: "e-books without copy protection",
    Format.NOTEBOOK: "Jupyter notebooks",
    Format.CALENDAR: "calendars",
    Format.CONTACTS: "contacts",
    Format.ORG: "Org",
    Format.LATEX: "LaTeX",
    Format.SUBTITLES: "subtitles",
    Format.BIBLIOGRAPHY: "BibTeX",
    Format.CANVAS: "Obsidian canvases",
    Format.ASCIIDOC: "AsciiDoc",
    Format.TEXTILE: "Textile",
    Format.PICTURE: "pictures, with OCR (see below)",
    Format.ARCHIVE: "archives that you name (see below)",
    Format.JSON: "JSON, by its keys",
    Format.YAML: "YAML, by its keys",
    Format.TOML: "TOML and INI, by their keys",
    Format.XML: "XML, by its elements",
}


def settings() -> str:
    """A commented settings file with every default."""
    lines = ["```toml", *_section(Settings)]
    for name, field in Settings.model_fields.items():
        if isinstance(section := field.annotation, type) and issubclass(section, BaseModel):
            lines += ["", f"[{name}]", *_section(section)]
    return "\n".join([*lines, "```"])


def _section(section: type[BaseModel]) -> list[str]:
    described = docstrings(section)
    lines = list[str]()
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        comment = re.sub(r"'([\w.-]+)'", r'"\1"', " ".join(described[name].split())) + _limits(field)
        lines += textwrap.wrap(comment, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
        default = field.get_default(call_default_factory=True)
        unset = name == _DIFFERS_BY_SYSTEM or default is None
        lines.append(f'# {name} = "…"' if unset else f"{name} = {_toml(default)}")
    return lines


def _limits(field: FieldInfo) -> str:
    """' (0 to 64)' or ' ("auto" | "cpu" | "cuda")'; '' where the type says all."""
    if get_origin(field.annotation) is Literal:
        return f" ({' | '.join(json.dumps(value) for value in get_args(field.annotation))})"
    bounds = [*field.metadata, *(m for a in get_args(field.annotation) for m in getattr(a, "__metadata__", ()))]
    bounds += [inner for bound in bounds if isinstance(bound, FieldInfo) for inner in bound.metadata]
    low = [bound.ge for bound in bounds if isinstance(bound, Ge)]
    above = [bound.gt for bound in bounds if isinstance(bound, Gt)]
    high = [bound.le for bound in bounds if isinstance(bound, Le) and float(str(bound.le)) < 1e6]
    if low and high:
        return f" ({low[0]} to {high[0]})"
    return f" (at least {low[0]})" if low and low[0] else f" (more than {above[0]})" if above else ""


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str)


def keys() -> str:
    """Actions of the UI with their keys, by the screens on which they act."""
    rows = ["| action | key | does | where |", "|---|---|---|---|"]
    for each in KEY_ACTIONS:
        rows.append(f"| `{each.name}` | {shown_key(each.key)} | {each.meaning} | {each.area.value.lower()} |")
    return "\n".join(rows)


def fixed_keys() -> str:
    """Keys of the UI that cannot be changed."""
    return "\n".join(["| key | does |", "|---|---|", *(f"| {key} | {meaning} |" for key, meaning in FIXED_KEYS)])


def read_formats() -> str:
    """Names and the format that each is read as."""
    rows = ["| format | by ending | by whole name |", "|---|---|---|"]
    for kind in Format:
        endings = ", ".join(f".{name}" for name, known in formats._BY_SUFFIX.items() if known is kind)
        names = ", ".join(name for name, known in formats._BY_NAME.items() if known is kind)
        rows.append(f"| {_FORMAT_NAMES[kind]} | {endings} | {names} |")
    return "\n".join(rows)


def unread_formats() -> str:
    """Kinds of files that hold something and are not read."""
    rows = ["| not read | by ending |", "|---|---|"]
    rows += [f"| {kind} | {', '.join('.' + name for name in names.split())} |"
             for kind, names in formats._UNREAD_KINDS.items()]  # fmt: skip
    return "\n".join(rows)


def secrets() -> str:
    """Names that are taken for secrets."""
    kinds = ", ".join(dict.fromkeys(kind for kind, _ in sensitive.NAME_RULES))
    rest = textwrap.fill(f"and settings, text and office files whose name says that they hold: {kinds}.", _WIDTH)
    return f"{_names(sensitive.NAME_PATTERNS)}\n\n{rest}"


def tools() -> str:
    """Names of tool folders and leftovers."""
    return _names(discovery._DEFAULTS)


def _names(patterns: str) -> str:
    return "\n".join(["```text", *textwrap.wrap(" ".join(patterns.split()), _WIDTH, break_on_hyphens=False), "```"])


def exit_codes() -> str:
    """The table of exit codes."""
    rows = ["| code | meaning |", "|---:|---|", *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())]
    return "\n".join(rows)


def families() -> str:
    """The families that stand for a property, and how far their stitched logits are from one masked pass."""
    from desk_rag.bench.models.tiny_models import FAMILIES as TINY

    in_fp32 = _EXACTNESS.read_text(encoding="utf-8").partition("## Half precision")[0]
    errors = dict(re.findall(r"^\| (\S+) +\| +(\S+) \|", in_fp32, re.MULTILINE))
    rows = ["| family | what sets it apart | largest error in fp32 |", "|---|---|---:|"]
    rows += [f"| {each.name} | {each.property} | {errors[each.name]} |" for each in TINY if each.property]
    return "\n".join(rows)


def quantized_weights() -> str:
    """The forms in which weights come quantised, what each needs, and how it is held in memory."""
    from desk_rag.model.checkpoint.quantized import PACKAGES, WIDENED

    rows = ["| weights quantised by | needs | held in memory |", "|---|---|---|"]
    for method, packages in PACKAGES.items():
        in_memory = "widened to 16 bits (fp32 on most CPUs)" if method in WIDENED else "as they are"
        rows.append(f"| {method} | `pip install {' '.join(packages)}` | {in_memory} |")
    return "\n".join(rows)


PARTS = {
    part.__name__: part
    for part in (
        settings, keys, fixed_keys, read_formats, unread_formats, secrets, tools, exit_codes, families,
        quantized_weights,
    )
}  # fmt: skip


def filled(guide: str) -> str:
    """`guide` with the text between `<!-- from the code: NAME -->` and `<!-- end -->` made anew."""
    return re.sub(
        r"(<!-- from the code: (\w+) -->\n).*?(<!-- end -->)",
        lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", guide, flags=re.DOTALL,
    )  # fmt: skip


if __name__ == "__main__":
    for file in sorted(GUIDES.glob("*.md")):
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")

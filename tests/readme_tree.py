"""The source tree as the README shows it, made from the modules' own first sentences, so that it cannot go stale.

`python -m tests.readme_tree` writes it into README.md; `test_architecture` fails while the two differ.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- tree: python -m tests.readme_tree -->\n```text\n", "```\n<!-- end of tree -->"
PACKAGES = ("desk_rag", "indexer", "tui")
OTHERS = {
    "assets/reader": "the embedded language model: weights, tokenizer, model card",
    "assets/sample_docs": "fictional documents for the demo and the tests",
    "tests": "mirrors the three packages: tests/kv/test_stitch.py tests desk_rag/kv/stitch.py",
    ".ci": "setup.py makes the environment and chooses torch; run is what every change must pass",
    "Makefile": "demo, test, bench, wheel, clean",
    "pyproject.toml": "dependencies, entry point, settings of ruff, mypy, pytest and the import contracts",
}


def render() -> str:
    """The tree, one line per file, with one clause each."""
    lines = []
    for package in PACKAGES:
        lines += [f"{package}/{_clause_of(ROOT / package / '__init__.py')}", *_folder(ROOT / package, 1)]
    width = max(len(name) for name in OTHERS) + 2
    lines += [f"{name:<{width}}{clause}" for name, clause in OTHERS.items()]
    return "\n".join(lines) + "\n"


def in_readme() -> str:
    """The tree as it stands in README.md now."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split(START, 1)[1].split(END, 1)[0]


def _folder(folder: Path, depth: int) -> list[str]:
    lines = []
    indent = "    " * depth
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.is_dir() and any(path.rglob("*.py")):
            lines += [f"{indent}{path.name}/{_clause_of(path / '__init__.py')}", *_folder(path, depth + 1)]
        elif path.suffix == ".py" and path.name != "__init__.py":
            lines.append(f"{indent}{path.name:<22}{first_clause(path)}")
        elif path.is_file() and path.suffix in {".md", ".tcss"}:
            lines.append(f"{indent}{path.name:<22}{_first_line(path)}")
    return lines


def _clause_of(file: Path) -> str:
    return f"  {first_clause(file)}" if file.is_file() and first_clause(file) else ""


def first_clause(file: Path) -> str:
    """The first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    return re.split(r"(?<=[.?!])\s+(?=[A-Z`'\"])", paragraph, maxsplit=1)[0].rstrip(".")


def _first_line(file: Path) -> str:
    return file.read_text(encoding="utf-8").splitlines()[0].strip("/*# ").rstrip(".")


def main() -> None:
    """Write the tree into README.md."""
    file = ROOT / "README.md"
    text = file.read_text(encoding="utf-8")
    before, rest = text.split(START, 1)
    file.write_text(before + START + render() + END + rest.split(END, 1)[1], encoding="utf-8")


if __name__ == "__main__":
    main()

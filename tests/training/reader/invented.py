"""An invented data set on disk, in the files that the recipe reads: a harbour's papers and questions on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

SHIPS = (
    "Aldous", "Brenna", "Corvin", "Dorrit", "Edwy", "Fenella", "Gawain", "Hesper", "Isolde", "Jory", "Kerensa", "Lowen",
)  # fmt: skip
GOODS = ("tar", "rope", "salt", "herring", "timber", "wool", "tin", "barley", "lamp oil", "slate")
TOWNS = ("Porthcurno", "Zennor", "Mousehole", "Lamorna", "Sennen", "Pendeen", "Marazion", "Gurnard")
TOGETHER = (
    ("The Aldous is owned by the Trelawney company.", "The Trelawney company has its office in Zennor."),
    ("The Brenna was mended by Polglase.", "Polglase can be called under 417-2206."),
)
SYNONYMS = {"harbour": [["port"], "a place where ships are safe"], "carries": [["bears"], "takes from here to there"]}


def sentence(rng: Random) -> str:
    """A sentence about a ship's load."""
    ship, goods, town = rng.choice(SHIPS), rng.choice(GOODS), rng.choice(TOWNS)
    return rng.choice(
        [
            f"The {ship} carries {rng.randint(20, 900)} barrels of {goods} to {town} before the winter.",
            f"In {rng.randint(1710, 1890)} the harbour of {town} sold its {goods} to the master of the {ship}.",
            f"No {goods} may be stored beside the old quay, because the watchman of {town} sleeps there.",
        ]
    )


def document(rng: Random, sentences: int) -> str:
    """Paragraphs of six sentences."""
    sentences_of_page = [sentence(rng) for _ in range(sentences)]
    return "\n\n".join(" ".join(sentences_of_page[at : at + 6]) for at in range(0, sentences, 6))


def passage(rng: Random, pier: int) -> tuple[str, list[tuple[str, str]]]:
    """A passage on three ships that landed at a pier, with two questions that no other passage answers."""
    loads = [(ship, str(rng.randint(20, 900)), rng.choice(GOODS)) for ship in rng.sample(SHIPS, 3)]
    lines = [landed(ship, count, goods, pier) for ship, count, goods in loads]
    pairs = [(f"How many barrels did the {ship} land at pier {pier}?", count) for ship, count, _ in loads[:2]]
    return " ".join([*lines, sentence(rng)]), pairs


def landed(ship: str, count: str, goods: str, pier: int) -> str:
    """One line of such a passage."""
    return f"The {ship} landed {count} barrels of {goods} at pier {pier} before dawn."


def write(folder: Path, *, documents: int = 24, sentences: int = 190, written: int = 16) -> Path:
    """All files of a data set; the defaults are as little as every stage of the recipe can work with."""
    rng = Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    corpus = [{"title": f"Harbour book {n}", "text": document(rng, sentences)} for n in range(documents)]
    _lines(folder / "part-00.jsonl", corpus)
    for which in ("train", "dev"):
        asked, absent = [], []
        for number in range(written):
            text, pairs = passage(rng, 11 + number if which == "train" else 61 + number)
            source = "desk" if number % 2 else "book"
            common = {"passage": text, "title": f"Ships {number}.txt"}
            asked += [common | {"question": q, "answer": a, "source": source} for q, a in pairs]
            if number % 4 == 1:
                absent.append(common | {"question": "Who mended the lighthouse lamp?"})
        _lines(folder / f"qa_{which}.jsonl", asked)
        _lines(folder / f"unanswerable_{which}.jsonl", absent)
        _lines(folder / f"multi_{which}.jsonl", [_together(texts) for texts in TOGETHER])
    (folder / "synonyms.json").write_text(json.dumps(SYNONYMS), encoding="utf-8")
    return folder


def _together(texts: tuple[str, str]) -> dict[str, object]:
    last = texts[1].rstrip(".").split()[-1]
    return {"texts": texts, "qas": [[f"What belongs to {texts[0].split()[1]}?", last]], "evidence": [list(texts)]}


def _lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")

"""Write the pictures as SVG files: `python -m tests.tui.pictures DIRECTORY [NAME]`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tui.pictures import HERE, pictures

if __name__ == "__main__":
    target, wanted = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "*"
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(HERE.glob(f"{wanted}.json.xz")):
        for key, picture in pictures(file).items():
            (target / f"{file.name.partition('.')[0]} {key}.svg".replace(" ", "-")).write_text(picture)

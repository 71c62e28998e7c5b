"""desk-rag: a local assistant that answers from on-disk chunk caches. Importing this package loads nothing else."""

import os

__version__ = "0.1.0"

# `desk_rag/indexer` and `desk_rag/tui` are folders in a wheel, and links to the folders at the top of the repository in
# a checkout. A source archive, or git on Windows, may lack the links: the two are then imported from the top.
_folder = __path__[0]
if not os.path.isdir(os.path.join(_folder, "tui")):  # noqa: PTH112, PTH118
    __path__.append(os.path.dirname(_folder))  # noqa: PTH120

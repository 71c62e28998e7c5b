"""desk-rag: a local assistant that answers from on-disk chunk caches. Importing this package loads nothing else."""

import os

# Threads of the CPU kernels that wait for each other spin 300,000 times before they sleep, unless libgomp is told
# otherwise before torch is loaded. Beside other programs, nearly all time would go there (bench/LOG.md, "Waiting
# threads"); 1,000 is libgomp's own number where it knows that cores are scarce.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"

# `desk_rag/indexer` and `desk_rag/tui` are folders in a wheel, and links to the folders at the top of the repository in
# a checkout. A source archive, or git on Windows, may lack the links: the two are then imported from the top.
_folder = __path__[0]
if not os.path.isdir(os.path.join(_folder, "tui")):  # noqa: PTH112, PTH118
    __path__.append(os.path.dirname(_folder))  # noqa: PTH120

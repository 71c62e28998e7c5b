"""desk-rag: a local assistant that answers from on-disk chunk caches. Importing this package loads nothing else."""

import gc
import os
import sys

__version__ = "0.1.0"

# Beside other programs, threads that wait for each other at the end of every small product cost more than they gain.
# torch's (libgomp) spin for milliseconds while another program keeps one of them off its core, and embedding became
# eight times slower; numpy's (OpenBLAS) made a search take a second instead of 0.05 s. Read when torch and numpy load.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# torch hands out a GPU's memory in segments, which can grow. Without that, gaps between them take so much of a card of
# 6 GiB that answers fail which fit. Read when torch first uses a GPU.
if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

# Python looks for cycles of objects whenever a few hundred more are alive, which while torch and the models load means
# ever more objects that stay: a tenth of the CPU time of a command.
gc.set_threshold(20_000, *gc.get_threshold()[1:])

# `desk_rag/indexer` and `desk_rag/tui` are folders in a wheel, and links to the folders at the top of the repository in
# a checkout. A source archive, or git on Windows, may lack the links: the two are then imported from the top.
_folder = __path__[0]
if not os.path.isdir(os.path.join(_folder, "tui")):  # noqa: PTH112, PTH118
    __path__.append(os.path.dirname(_folder))  # noqa: PTH120

"""Chooses Triton's interpreter before anything imports Triton (torch's compiler does), on machines without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

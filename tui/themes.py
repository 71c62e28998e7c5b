"""Define the dark and the light colour theme; no colour carries meaning alone."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="desk-rag",
    dark=True,
    primary="#8aa9c8",
    secondary="#7d8a99",
    accent="#e2b86b",
    foreground="#d5d9de",
    background="#14171b",
    surface="#1a1e23",
    panel="#22272e",
    success="#93bf8c",
    warning="#e2b86b",
    error="#e08585",
)
LIGHT = Theme(
    name="desk-rag-light",
    dark=False,
    primary="#33608c",
    secondary="#66707a",
    accent="#96610a",
    foreground="#23282e",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e7e4dc",
    success="#3b7a35",
    warning="#96610a",
    error="#b03a3a",
)

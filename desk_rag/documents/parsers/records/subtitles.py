"""Parse subtitles (.srt, .vtt): spoken text in paragraphs, each beginning with its time, with line numbers."""

from __future__ import annotations

import re

from desk_rag.documents.document import BlockKind
from desk_rag.documents.parsers.building import Builder, Lines, Parsed

_TIMING = re.compile(r"\s*(?P<start>(?:\d+:)?\d{1,2}:\d{2})[.,]\d{1,3}\s*-->")
_VOICE = re.compile(r"<v(?:\.[\w.-]+)? (?P<name>[^>\n]{1,80})>")
_TAG = re.compile(r"<[^>\n]{0,200}>|\{\\[^}\n]{0,100}\}")
_CUES_PER_PARAGRAPH = 8
_PAUSE = 20
"""Seconds from one cue to the next that begin a paragraph."""


def parse(text: str, note: str = "") -> Parsed:
    """About eight cues a paragraph: a single cue is too short to be understood alone."""
    builder = Builder()
    cues = _cues(text.split("\n"))
    begin = 0
    for end in range(1, len(cues) + 1):
        is_long = end - begin == _CUES_PER_PARAGRAPH
        if end < len(cues) and not is_long and _seconds(cues[end][0]) - _seconds(cues[end - 1][0]) < _PAUSE:
            continue
        group = cues[begin:end]
        words = " ".join(spoken for _, spoken, _, _ in group)
        builder.add(f"[{group[0][0]}] {words}", BlockKind.PARAGRAPH, Lines(group[0][2], group[-1][3]))
        begin = end
    return builder.done(note)


def _seconds(time: str) -> int:
    return sum(int(part) * 60**power for power, part in enumerate(reversed(time.split(":"))))


def _cues(lines: list[str]) -> list[tuple[str, str, int, int]]:
    """(start time, text, first line, last line) of every cue that says something."""
    cues = []
    index = 0
    while index < len(lines):
        timing = _TIMING.match(lines[index])
        index += 1
        if timing is None:
            continue
        begin = index
        while index < len(lines) and lines[index].strip() and not _TIMING.match(lines[index]):
            index += 1
        spoken = " ".join(" ".join(_plain(line).split()) for line in lines[begin:index]).strip()
        if spoken:
            cues.append((timing["start"], spoken, begin + 1, index))
    return cues


def _plain(line: str) -> str:
    """Return a line without its tags; whoever speaks is named."""
    return _TAG.sub("", _VOICE.sub(r"\g<name>: ", line))

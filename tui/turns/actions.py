"""Actions on one turn: entries by name, as the menu, the palette and the help show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnAction:
    """An action of the chat screen on the selected turn."""

    name: str
    """`action_NAME` of the screen; its `check_action` says whether it is possible now."""
    title: str
    help: str
    key: str = ""
    """Name of the action that has the key, or the key itself; empty if only menu and palette offer it."""


TURN_ACTIONS = (
    TurnAction("answer_now", "Answer now", "From the files that have been read so far", "Enter"),
    TurnAction("stop", "Stop the answer", "Keep what has come so far", "back"),
    TurnAction("withdraw", "Withdraw the question", "Before it is asked; its text goes back to the prompt", "back"),
    TurnAction("ask_again", "Ask again", "The same question, in its place", "ask_again"),
    TurnAction("edit", "Edit the question", "Its text goes to the prompt", "edit"),
    TurnAction(
        "edit_searched",
        "Edit what was searched",
        "The question as it was completed from earlier turns, with the files it was limited to",
        "edit_searched",
    ),
    TurnAction("copy_answer", "Copy the answer", "With its quotes and their places", "copy"),
    TurnAction("copy_words", "Copy the words of the answer", "Without quotes"),
    TurnAction("copy_quotes", "Copy the quotes", "With their places"),
    TurnAction("read_source", "Read the source here", "Its text as desk-rag read it, at the quote", "read_source"),
    TurnAction("open_source", "Open the source", "In your editor or the desktop's program", "open_source"),
    TurnAction(
        "compare", "Compare with full prefill", "Both times to the first word, and whether the words agree", "compare"
    ),
    TurnAction("toggle_timing", "Show or hide timing", "The stages of the time to first token", "timing"),
    TurnAction("delete", "Delete this turn", "From the transcript"),
)

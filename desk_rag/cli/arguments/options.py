"""Types of the arguments that several commands share, and the settings that global options change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from desk_rag.cli.questions.early import EarlyQuestion
    from desk_rag.config import Settings


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings given on the command line; None where the settings file or the default decides."""

    config: Path | None
    data_dir: Path | None
    model: dict[str, object]
    early: EarlyQuestion | None = None
    """A question that was sent before these were known."""

    def settings(self) -> Settings:
        """Merge the settings: command line before file before default. Raises ConfigError."""
        from desk_rag import config

        from_file = config.load(self.config)
        changes: dict[str, object] = {"model": config.with_changes(from_file.model, self.model)}
        if self.data_dir is not None:
            changes["data_dir"] = self.data_dir
        merged = from_file.model_copy(update=changes)
        return merged.model_copy(update={"data_dir": merged.data_dir.expanduser().absolute()})


# `readable=False`: the command itself reports an unreadable path, with a remedy.
OptionalFolders = Annotated[
    list[Path] | None, typer.Argument(help="Folders; without one those of the settings.", readable=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Under = Annotated[
    list[Path] | None,
    typer.Option("--folder", "-f", metavar="FOLDER", help="Search only there; may be repeated.", readable=False),
]
Continue = Annotated[
    str | None,
    typer.Option("--continue", metavar="[ID]", help="Ask on in a saved chat; without ID in the latest."),
]
Private = Annotated[bool, typer.Option("--private", help="Do not save question and answer.")]
Attention = Annotated[
    Literal["auto", "materialize", "lazy"] | None,
    typer.Option(help="Expand int8 caches first, or read them in place (desk-rag help recompute)."),
]
Recompute = Annotated[str | None, typer.Option(metavar="RATIO", help="Share of passage tokens to recompute, 0 to 1.")]
Selector = Annotated[str | None, typer.Option(metavar="NAME", help="Method to select them (desk-rag help recompute).")]
OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Context settings of commands that parse their own options."""


def settings_of(ctx: typer.Context) -> Settings:
    """Return the settings with the global options of this call. Raises ConfigError."""
    overrides = ctx.obj
    assert isinstance(overrides, Overrides)
    return overrides.settings()

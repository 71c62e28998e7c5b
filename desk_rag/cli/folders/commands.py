"""The commands `ls`, `pause` and `resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from desk_rag.cli.arguments.options import Json, settings_of


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(ls)
    app.command()(pause)
    app.command()(resume)


def ls(
    ctx: typer.Context,
    folder: Annotated[Path | None, typer.Argument(help="A folder or file.", readable=False)] = None,
    as_json: Json = False,
) -> None:
    """List the indexed folders, or all files of FOLDER with their state."""
    from desk_rag.cli.folders import listing

    raise typer.Exit(listing.ls(settings_of(ctx), folder, as_json=as_json))


def pause(
    ctx: typer.Context,
    duration: Annotated[str, typer.Argument(metavar="[TIME]", help="Such as 30m, 2h or 1d.")] = "1h",
    until_resume: Annotated[bool, typer.Option("--until-resume", help="Until `desk-rag resume`.")] = False,
) -> None:
    """Pause the background work of `watch` and the UI, for an hour unless TIME says otherwise.

    Questions are answered meanwhile.
    """
    from desk_rag.cli.folders import pausing

    raise typer.Exit(pausing.pause(settings_of(ctx), "" if until_resume else duration))


def resume(ctx: typer.Context) -> None:
    """End a pause."""
    from desk_rag.cli.folders import pausing

    raise typer.Exit(pausing.resume(settings_of(ctx)))

"""The commands `ls`, `pause`, `resume`, `service` and `cache`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from desk_rag.cli.arguments.options import Json, OptionalFolders, settings_of
from desk_rag.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(ls)
    app.command()(pause)
    app.command()(resume)
    app.command()(service)
    app.command()(cache)


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
    duration: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TIME]", help="Such as 10m, 2h, 90 minutes or until 18:00.", show_default=False),
    ] = None,
    until_resume: Annotated[bool, typer.Option("--until-resume", help="Until `desk-rag resume`.")] = False,
) -> None:
    """Pause the background work of `watch` and the UI, for an hour unless TIME says otherwise.

    Questions are answered meanwhile.
    """
    from desk_rag.cli.folders import pausing

    raise typer.Exit(pausing.pause(settings_of(ctx), "" if until_resume else " ".join(duration or ["1h"])))


def resume(ctx: typer.Context) -> None:
    """End a pause."""
    from desk_rag.cli.folders import pausing

    raise typer.Exit(pausing.resume(settings_of(ctx)))


def service(
    ctx: typer.Context,
    action: Annotated[Literal["install", "status", "remove"], typer.Argument(help="What to do.")] = "status",
    folders: OptionalFolders = None,
    as_json: Json = False,
) -> None:
    """Have the system run `desk-rag watch FOLDERS` at every login.

    Writes one file for systemd or launchd and says how to start it; on Windows it prints a command instead.
    """
    from desk_rag.cli.folders import service as run_service

    if action == "install":
        raise typer.Exit(run_service.install(settings_of(ctx), folders or [], ctx.obj.config))
    raise typer.Exit(run_service.remove() if action == "remove" else run_service.status(as_json=as_json))


def cache(
    ctx: typer.Context,
    action: Annotated[Literal["export", "import"], typer.Argument(help="Copy to, or from, PLACE.")],
    place: Annotated[Path, typer.Argument(help="A directory; for `export` a new or empty one.", readable=False)],
    folder: Annotated[
        list[Path] | None,
        typer.Option("--folder", "-f", metavar="FOLDER", help="`export`: only what is below it.", readable=False),
    ] = None,
    renamed: Annotated[
        list[str] | None, typer.Option("--as", metavar="OLD=NEW", help="`import`: where a folder lies here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Move index and caches to another machine with the same model.

    What was cut off goes on when the command is run again. The export holds the text of your documents.
    """
    from desk_rag.cli.folders import transfer

    if action == "export":
        if renamed:
            raise ConfigError("--as belongs to `cache import`.", remedy="desk-rag help cache lists the options.")
        raise typer.Exit(transfer.export(settings_of(ctx), place, folder or [], as_json=as_json))
    if folder:
        raise ConfigError("--folder belongs to `cache export`.", remedy="desk-rag help cache lists the options.")
    raise typer.Exit(transfer.import_(settings_of(ctx), place, renamed or [], as_json=as_json))

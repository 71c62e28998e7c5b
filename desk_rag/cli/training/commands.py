"""The commands `finetune` and `adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from desk_rag.cli.arguments.options import OWN_OPTIONS, Json, settings_of


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(context_settings=OWN_OPTIONS, add_help_option=False)(finetune)
    app.command()(adapt)


def finetune(ctx: typer.Context) -> None:
    """Teach a model to read separately cached passages."""
    from desk_rag.cli.training import finetune as cli_finetune

    raise typer.Exit(cli_finetune.finetune(settings_of(ctx), ctx.args))


def adapt(
    ctx: typer.Context,
    folder: Annotated[
        list[Path] | None,
        typer.Option("--folder", "-f", metavar="FOLDER", help="Learn from there only.", readable=False),
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait until the computer is idle.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Forget what was learned for this model.")] = False,
    as_json: Json = False,
) -> None:
    """Make up for what separately cached passages cost a model.

    For models other than the embedded one. Learns from indexed text while the computer is idle, measures before and
    after, and keeps the result only if answers come nearer to full prefill's. Caches stay as they are.
    """
    from desk_rag.cli.training import adapt as cli_adapt

    raise typer.Exit(cli_adapt.adapt(settings_of(ctx), folder or [], now=now, undo=undo, as_json=as_json))

"""The commands `ask`, `search` and `chats`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from desk_rag.cli.arguments.options import (
    Attention,
    Continue,
    Json,
    Private,
    Recompute,
    Selector,
    Under,
    settings_of,
)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(ask)
    app.command()(search)
    app.command()(chats)


def ask(
    ctx: typer.Context,
    question: Annotated[
        list[str] | None,
        typer.Argument(help="The question; '-' reads one a line from standard input."),
    ] = None,
    folder: Under = None,
    batch: Annotated[
        Path | None, typer.Option("--batch", metavar="FILE", help="A file of questions, one a line.", readable=False)
    ] = None,
    mode: Annotated[
        Literal["cached", "full"], typer.Option(help="'full' reads everything again, for comparison.")
    ] = "cached",
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, max=64, metavar="N", help="Maximum number of passages.")
    ] = None,
    attention: Attention = None,
    recompute: Recompute = None,
    selector: Selector = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Do not index a folder that was never indexed.")] = False,
    continued: Continue = None,
    private: Private = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Answer even while files are still being read.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the models loaded for the next question.")] = False,
    as_json: Json = False,
) -> None:
    """Answer QUESTION with citations; '@letters/' or '@lease.md' in it limit the search.

    It needs quotation marks only where it holds a sign that the shell reads itself, such as ' ? * ( & or $.
    Several questions are answered in order, each as if it were asked alone; with --json one object a line.
    """
    from desk_rag.cli import work
    from desk_rag.cli.questions import several
    from desk_rag.cli.questions.ask import AskOptions
    from desk_rag.cli.questions.ask import ask as run_ask

    questions = several.questions_of(" ".join(question or []), batch)
    options = AskOptions(
        questions[0], tuple(folder or ()), mode, top_k, not no_index, not no_wait, as_json,
        continued=continued, private=private, keep=keep, settings_file=ctx.obj.config,
    )  # fmt: skip
    settings = work.with_answer_options(settings_of(ctx), attention, recompute, selector)
    if len(questions) > 1 or batch is not None:
        raise typer.Exit(several.ask_all(settings, options, questions))
    early = ctx.obj.early
    if early is not None and (early.config, early.data_dir) != (ctx.obj.config, ctx.obj.data_dir):
        early.connection.close()
        early = None
    raise typer.Exit(run_ask(settings, options, early))


def search(
    ctx: typer.Context,
    query: Annotated[list[str], typer.Argument(help="Words or a question.")],
    folder: Under = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Maximum number of passages to show.")] = 10,
    words: Annotated[bool, typer.Option("--words", help="By words only; starts faster.")] = False,
    as_json: Json = False,
) -> None:
    """Show the passages nearest to QUERY."""
    from desk_rag.cli.questions.search import search as run_search

    settings, text = settings_of(ctx), " ".join(query)
    raise typer.Exit(run_search(settings, text, folder or [], limit, words_only=words, as_json=as_json))


def chats(
    ctx: typer.Context,
    action: Annotated[
        Literal["list", "show", "search", "export", "delete"], typer.Argument(help="What to do.")
    ] = "list",
    which: Annotated[
        list[str] | None, typer.Argument(metavar="[ID|WORDS]", help="A chat's number, or words to search for.")
    ] = None,
    form: Annotated[Literal["md", "json"], typer.Option("--format", help="Format of an export.")] = "md",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    all_of_them: Annotated[bool, typer.Option("--all", help="List all chats, not only the latest 20.")] = False,
    as_json: Json = False,
) -> None:
    """List, show, search, export or delete saved chats."""
    from desk_rag.cli.questions import chats as chats_command

    which_text = " ".join(which or [])
    request = chats_command.Action(action, which_text, form, sure=yes, as_json=as_json, all_of_them=all_of_them)
    raise typer.Exit(chats_command.run(settings_of(ctx), request))

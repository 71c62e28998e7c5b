"""Parse the command line and call the module that does the work.

Imports typer and the standard library only, so that `--help` answers at once; what a command needs is imported in its
body. Errors of the tree in `errors` become a message, a remedy and an exit code, never a traceback.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from desk_rag import __version__
from desk_rag.cli import help, signals
from desk_rag.cli.arguments.group import NO_ROOM, Commands, ReaderLeft, output_has_no_room
from desk_rag.cli.arguments.options import (
    OWN_OPTIONS,
    Attention,
    Json,
    OptionalFolders,
    Overrides,
    Recompute,
    Selector,
    settings_of,
)
from desk_rag.cli.arguments.words import split_globals
from desk_rag.cli.folders import commands as folder_commands
from desk_rag.cli.questions import commands as question_commands
from desk_rag.cli.training import commands as training_commands
from desk_rag.errors import EXIT_CODES, ConfigError, told_to_user

if TYPE_CHECKING:
    from desk_rag.cli.questions.early import EarlyQuestion

_EPILOG = (
    "`desk-rag ~/Documents` opens the UI on that folder. The options above may also stand after the command. "
    "`desk-rag help` lists guides to files, settings, models and more. "
    f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}."
)
_DEBUG = "DESK_RAG_TRACEBACK"

app = typer.Typer(
    cls=Commands,
    name="desk-rag",
    help="Answer questions about your own folders, with quotes. Nothing leaves this computer.",
    epilog=_EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"desk-rag {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="'embedded', a model directory or GGUF file, a name of Ollama's, or ORG/NAME (help models)."),
    ] = None,
    adapter: Annotated[str | None, typer.Option(metavar="DIR", help="Adapter made by `finetune`.")] = None,
    quantization: Annotated[
        Literal["none", "nf4", "int8", "int4"] | None,
        typer.Option(help="Weight quantisation; nf4 needs an NVIDIA GPU, int4 is for CPUs."),
    ] = None,
    rungs: Annotated[str | None, typer.Option(metavar="LIST", help="Cache variants, such as 0,1,3.")] = None,
    embedder: Annotated[str | None, typer.Option(help="'embedded', or a sentence-transformers name or path.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where the model runs.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="DESK_RAG_DATA_DIR", help="Where index and caches are kept.", readable=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="DESK_RAG_CONFIG", help="Settings file.", readable=False)
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch a missing model from the hub; nothing else connects.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    signals.prepare(ctx.invoked_subcommand or "")
    options: dict[str, object] = {"name": model, "adapter": adapter, "quantization": quantization}
    options |= {"embedder": embedder, "device": device, "rungs": rungs, "allow_download": download or None}
    changes = {key: value for key, value in options.items() if value is not None}
    ctx.obj = Overrides(config, data_dir, changes, ctx.obj)


@app.command("open")
def open_ui(
    ctx: typer.Context,
    folders: OptionalFolders = None,
    attention: Attention = None,
    recompute: Recompute = None,
    selector: Selector = None,
    plain: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII signs only.")] = False,
) -> None:
    """Open the UI (also: desk-rag [FOLDER])."""
    from desk_rag.cli import work

    settings = work.with_answer_options(settings_of(ctx), attention, recompute, selector)
    if plain:
        settings = settings.model_copy(update={"ui": settings.ui.model_copy(update={"ascii": True})})
    raise typer.Exit(work.open_ui(settings, folders or [], ctx.obj.config))


@app.command()
def index(
    ctx: typer.Context,
    folders: OptionalFolders = None,
    no_kv: Annotated[bool, typer.Option("--no-kv", help="Make documents findable, without caches.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be read.")] = False,
    ray: Annotated[str, typer.Option(metavar="ADDRESS", help="Fill caches on this Ray cluster, or 'local'.")] = "",
    as_json: Json = False,
) -> None:
    """Read what changed in FOLDERS; single files may be named, too.

    Documents can be found by words first, then by meaning; answers are fast once their caches are filled.
    """
    from desk_rag.cli import work

    settings, file = settings_of(ctx), ctx.obj.config
    code = work.index(settings, folders or [], file, warm=not no_kv, dry_run=dry_run, as_json=as_json, ray=ray)
    raise typer.Exit(code)


question_commands.register(app)


@app.command()
def watch(ctx: typer.Context, folders: OptionalFolders = None) -> None:
    """Keep FOLDERS indexed in the background.

    Caches are filled while the computer is idle. Ends on Ctrl+C or SIGTERM; what was done is kept.
    """
    from desk_rag.cli import work

    raise typer.Exit(work.watch(settings_of(ctx), folders or [], ctx.obj.config))


@app.command()
def status(ctx: typer.Context, as_json: Json = False) -> None:
    """Show what is indexed, its size, and what is being done."""
    from desk_rag.cli import store

    raise typer.Exit(store.status(settings_of(ctx), as_json=as_json))


@app.command()
def why(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A file or folder.", readable=False)],
    as_json: Json = False,
) -> None:
    """Say whether FILE was read, and if not, why."""
    from desk_rag.cli import why as why_command

    raise typer.Exit(why_command.why(settings_of(ctx), file, ctx.obj.config, as_json=as_json))


@app.command()
def verify(
    ctx: typer.Context,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove what is damaged; it is made again when needed.")
    ] = False,
    subset: Annotated[str, typer.Option(help="Part of the caches to check, such as 1/7.")] = "1/1",
    as_json: Json = False,
) -> None:
    """Check everything that is stored against its checksum."""
    from desk_rag.cli import store

    raise typer.Exit(store.verify(settings_of(ctx), repair=repair, subset=subset, as_json=as_json))


@app.command()
def purge(
    ctx: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="Forget what is under this folder or file.", readable=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete the whole data directory.")] = False,
    check: Annotated[
        bool, typer.Option("--verify", help="Afterwards search the store for traces of the text.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    as_json: Json = False,
) -> None:
    """Forget FOLDER: its text, vectors and caches.

    Inside an indexed folder it is excluded from then on. Saved questions that quote FOLDER, name a file in it or were
    answered from it are deleted; others stay, without its files among their sources. Your own files are never touched.
    """
    from desk_rag.cli.folders import purging

    if (folder is None) == (not everything):
        raise ConfigError("Name a folder to purge, or use --all.", remedy="desk-rag help purge lists the options.")
    settings, file = settings_of(ctx), ctx.obj.config
    raise typer.Exit(purging.purge(settings, folder, file, check=check, sure=yes, as_json=as_json))


@app.command()
def deletions(
    ctx: typer.Context,
    confirm: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Remove those below it from the index now.", readable=False)
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep those below it in the index.", readable=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List documents whose files are gone.

    When many files vanish at once, their documents stay in the index for a while (`deletion_grace_hours`).
    """
    from desk_rag.cli import deletions as cli_deletions

    raise typer.Exit(cli_deletions.run(settings_of(ctx), confirm, keep, as_json=as_json))


@app.command()
def pin(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder or file.", readable=False)],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the pin.")] = False,
) -> None:
    """Delete FOLDER's caches last when space runs out."""
    from desk_rag.cli import store

    raise typer.Exit(store.pin(settings_of(ctx), folder, remove=remove))


@app.command()
def models(
    ctx: typer.Context,
    action: Annotated[
        Literal["list", "fit", "use", "download"],
        typer.Argument(help="`list` what is here, `fit` it to this machine, `use` or `download` NAME."),
    ] = "list",
    name: Annotated[str, typer.Argument(help="A model, as for --model.")] = "",
    folder: Annotated[
        list[Path] | None,
        typer.Option("--folder", "-f", metavar="DIR", help="`list`: look there too. `fit`: its text.", readable=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Download without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Show which models there are and which suit this machine; choose one.

    Looks into the Hugging Face cache, Ollama and LM Studio. Nothing connects but `download`.
    """
    from desk_rag.cli import models as cli_models

    task = cli_models.Task(name, tuple(folder or ()), ctx.obj.config, sure=yes, as_json=as_json)
    raise typer.Exit(cli_models.run(action, settings_of(ctx), task))


@app.command()
def doctor(ctx: typer.Context, as_json: Json = False) -> None:
    """Check the installation and say how to fix what is wrong."""
    from desk_rag.cli import doctor as doctor_command

    raise typer.Exit(doctor_command.run(settings_of(ctx), as_json=as_json))


training_commands.register(app)


@app.command(context_settings=OWN_OPTIONS, add_help_option=False)
def bench(ctx: typer.Context, name: Annotated[str, typer.Argument(help="Such as ttft.")] = "") -> None:
    """Measure this computer; begin with bench ttft.

    `bench --help` lists the benchmarks, `bench NAME --help` the options of one.
    """
    from desk_rag.bench.harness import catalogue

    raise typer.Exit(catalogue.run(name, ctx.args))


@app.command("help")
def guide(topic: Annotated[str, typer.Argument(help="A guide or a command; none lists them.")] = "") -> None:
    """Print a guide, or the options of a command."""
    help.show(topic, _command_names(), sys.stdout)


folder_commands.register(app)


def main(argv: Sequence[str] | None = None, early: EarlyQuestion | None = None) -> int:
    """Run one command; returns the exit code. `early` is a question in `argv` that was sent already."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="replace")
    code = 0
    try:
        code = _run(sys.argv[1:] if argv is None else argv, early)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderLeft):
        # Nobody reads our output any more (`desk-rag search x | head -1`): end without a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if not output_has_no_room(error):
            raise
        code = _failed(NO_ROOM, 1)
    if argv is None:
        _end_process(code)
    return code


def _end_process(code: int) -> None:
    """End the process without taking the libraries apart, which takes 0.1 s; return if a thread is still at work."""
    own = threading.current_thread()
    if any(thread is not own and not thread.daemon for thread in threading.enumerate()):
        gc.freeze()  # a look through all objects of the libraries takes up to a second
        return
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(argv: Sequence[str], early: EarlyQuestion | None) -> int:
    try:
        app(route(argv), prog_name="desk-rag", obj=early)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except (BrokenPipeError, ReaderLeft):
        raise
    except Exception as error:
        if output_has_no_room(error):
            return _failed(NO_ROOM, 1)
        user_error = told_to_user(error)
        if user_error is not None:
            return _failed(str(user_error), user_error.exit_code)
        if os.environ.get(_DEBUG, "0") != "0":
            raise
        remedy = f"This is a bug in desk-rag. Run the command again with {_DEBUG}=1 and report what it prints."
        return _failed(f"Internal error: {type(error).__name__}: {error}\n  {remedy}", 1)
    return 0


def route(argv: Sequence[str]) -> list[str]:
    """Return the arguments in typer's order: global options first, and `open` where no command is named.

    `help COMMAND` becomes `COMMAND --help`. Raises ConfigError for a first word that is neither a command nor a path.
    """
    ahead, rest = split_globals(argv)
    commands = _command_names()
    first = next((word for word in rest if not word.startswith("-")), None)
    if first == "help":
        topic = next((number for number, word in enumerate(rest) if word in commands and word != "help"), None)
        return [*ahead, *rest] if topic is None else [*ahead, *rest[topic:], "--help"]
    if first in commands:
        return [*ahead, *rest]
    if any(word in ("-h", "--help", "--version") for word in rest):
        return [*ahead, *rest]
    if first is not None and os.sep not in first and not Path(first).expanduser().exists():
        raise help.unknown_word(first, commands)
    return [*ahead, "open", *rest]


def _command_names() -> list[str]:
    return [str(c.name or c.callback.__name__) for c in app.registered_commands if c.callback is not None]


def _failed(text: str, code: int) -> int:
    from desk_rag.sanitize import clean

    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"desk-rag: {clean(text)}\n")
    return code

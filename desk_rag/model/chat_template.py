"""Render a model's chat template in a child process with limits of time, memory and output.

A chat template is a Jinja program that comes with the weights. Jinja's sandbox keeps it from files and attributes, but
not from loops and strings without end, and no thread can stop those. The child has only Jinja loaded: it starts in some
70 ms, less than reading the tokenizer through transformers takes.

Run as a module this file is that child: it reads one request as JSON from stdin and writes one reply to stdout.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from desk_rag.errors import ModelError

MOST_TEMPLATE = 256 * 1024
_MOST_OUTPUT = 64 * 1024
_MOST_TOKEN = 256
_CPU_SECONDS = 2
_WALL_SECONDS = 20.0
"""Wall-clock limit for systems without a limit on CPU time; others reach it only under heavy load."""
_MEMORY_MIB = 512
_DATE = datetime.datetime(2026, 1, 1)
"""Date given to templates: today's date would change the shared prefix, and with it all chunk KV, every day."""

Turn = Mapping[str, str]


def render(source: Path, template: str, tokens: Mapping[str, str], conversations: Sequence[Sequence[Turn]]) -> str:
    """Render the first of `conversations` that the template of the model in `source` accepts.

    `tokens` are the special tokens by name (bos_token, eos_token). Raises ModelError.
    """
    if len(template) > MOST_TEMPLATE:
        raise _refusal(source, f"is longer than {MOST_TEMPLATE // 1024} KiB")
    short = {name: text for name, text in tokens.items() if len(text) <= _MOST_TOKEN}
    request = json.dumps({"template": template, "tokens": short, "conversations": conversations})
    reply = _run_child(source, request)
    if "error" in reply:
        raise _refusal(source, f"fails: {str(reply['error']).rstrip('.')}")
    return str(reply["text"])


def _run_child(source: Path, request: str) -> dict[str, Any]:
    package = Path(__file__).resolve().parent.parent.parent
    # -P and an explicit path: a json.py in the folder that desk-rag was started in must not be imported.
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-m", "desk_rag.model.chat_template"]
    try:
        done = subprocess.run(
            command, input=request.encode(), capture_output=True, env=environment, timeout=_WALL_SECONDS, check=False
        )
        reply = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise _refusal(source, "takes too long to render") from error
    except OSError as error:
        raise ModelError(f"No process to render a chat template could be started: {error.strerror}.") from error
    except ValueError as error:  # killed by a limit before it answered
        raise _refusal(source, f"takes more than {_CPU_SECONDS} s or {_MEMORY_MIB} MiB to render") from error
    return reply if isinstance(reply, dict) else {"error": "no reply"}


def _refusal(source: Path, what: str) -> ModelError:
    return ModelError(
        f"The chat template in {source} {what}.",
        remedy="Fetch the model's files again from its publisher, or take another model.",
    )


def main() -> None:
    """Serve the one request on stdin."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    _limit()
    request = json.load(sys.stdin)
    try:
        reply = _reply(request["template"], request["tokens"], request["conversations"])
    except Exception as error:  # whatever a template can provoke is a fault of the template
        first_line = (str(error).strip().splitlines() or [""])[0][:200]
        reply = {"error": f"{type(error).__name__} {first_line}".strip()}
    json.dump(reply, answers)
    answers.flush()
    os._exit(0)  # nothing is left to tidy up, and a template's objects may take long to free


def _reply(template: str, tokens: dict[str, str], conversations: list[list[dict[str, str]]]) -> dict[str, str]:
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

    program = _environment().from_string(template)
    for number, turns in enumerate(conversations, start=1):
        try:
            return {"text": _bounded(program, turns, tokens)}
        except (SecurityError, TemplateSyntaxError):
            raise
        except TemplateError:  # a template without a system role says so by raising; the next one has none
            if number == len(conversations):
                raise
    raise ValueError("no conversation")


def _bounded(program: Any, turns: list[dict[str, str]], tokens: dict[str, str]) -> str:
    options = {"add_generation_prompt": True, "enable_thinking": False, "date_string": "1 January 2026"}
    pieces, length = [], 0
    for piece in program.generate(**{**tokens, **options, "messages": turns, "tools": None, "documents": None}):
        pieces.append(piece)
        length += len(piece)
        if length > _MOST_OUTPUT:
            raise ValueError(f"it renders more than {_MOST_OUTPUT // 1024} KiB")
    return "".join(pieces)


def _environment() -> Any:
    """Build the environment that transformers gives chat templates, without the parts for training."""
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(jinja2.ext.Extension):
        """{% generation %}, which marks a trainer's targets and changes nothing in the text."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    class PlainNamespace(Namespace):
        """A namespace without names that lead into the interpreter."""

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise SecurityError(f"a namespace cannot store '{name}'")
            super().__setitem__(name, value)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        kept = {name: option for name, option in options.items() if name in ("separators", "sort_keys")}
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **kept)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: _DATE.strftime(form),
        "namespace": PlainNamespace,
    }
    return environment


def _limit() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # no such limits on Windows; macOS may refuse
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MIB * 1024 * 1024,) * 2)


if __name__ == "__main__":
    main()

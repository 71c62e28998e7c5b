"""Say how many passages an answer of a model reads, from its tokenizer and its window; loads no weights."""

from __future__ import annotations

from desk_rag.answering.context import passage_limit
from desk_rag.cli import output as out
from desk_rag.config import AnswerSettings
from desk_rag.errors import ConfigError, UnsupportedModel
from desk_rag.model.prompt import PromptFormat


def passages_read(settings: AnswerSettings, prompt: PromptFormat, window: int, name: str) -> str:
    """Return a sentence part: how many passages of the usual length an answer reads, and if not all, why."""
    wanted = settings.top_k or prompt.top_k
    try:
        limit = passage_limit(settings, prompt, window, name)
    except (ConfigError, UnsupportedModel) as error:
        return f"an answer has no room for a passage: {error.message}"
    fitting = limit.usual_passages(prompt, wanted)
    if fitting == wanted:
        return f"an answer reads {out.plural(wanted, 'passage')}"
    return f"an answer reads about {fitting} of the {wanted} nearest passages: {limit.reason}"

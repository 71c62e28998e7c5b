"""Say what a failed connection to the Hugging Face hub means, and what to do."""

from __future__ import annotations

import errno

from desk_rag.errors import ModelError, ModelNotFound

_NETWORK = frozenset({"httpx", "httpcore", "requests", "urllib"})
"""Packages whose errors mean that a connection failed."""


def explained(name: str, error: Exception) -> ModelError:
    """Return an error that says why the hub did not answer, and what to do."""
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return ModelNotFound(
            f"The publisher of '{name}' wants its licence to be accepted first.",
            remedy=f"Accept it at https://huggingface.co/{name}, then run `hf auth login` and this command again.",
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFound(
            f"The hub has no model '{name}', or it is private.", remedy="Check the name, or run `hf auth login`."
        )
    if isinstance(error, OfflineModeIsEnabled):
        return ModelNotFound(
            f"'{name}' was not fetched: HF_HUB_OFFLINE is set.", remedy="Unset it for this command: HF_HUB_OFFLINE=0"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ModelError(
            f"The drive filled up while '{name}' was fetched.",
            remedy="Make room, or set HF_HUB_CACHE to another drive, and run the command again: what has come is kept.",
        )
    if type(error).__module__.partition(".")[0].rstrip("0123456789") in _NETWORK or isinstance(error, TimeoutError):
        return ModelError(
            f"The connection to the hub broke, or could not be made, while '{name}' was fetched "
            f"({type(error).__name__}).",
            remedy="Check the network and run the command again: what has come is kept.",
        )
    return ModelNotFound(
        f"'{name}' could not be downloaded: {type(error).__name__}.",
        remedy="Check the name and the network, or copy the model to a directory and give its path.",
    )

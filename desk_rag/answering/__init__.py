"""From a question to an answer with citations; `engine` is the doorway."""

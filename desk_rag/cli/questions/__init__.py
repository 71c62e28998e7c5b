"""Commands around questions: search, saved chats, follow-ups from the shell."""

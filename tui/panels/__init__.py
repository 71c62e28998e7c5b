"""The screens beside the chat, and what they ask with."""

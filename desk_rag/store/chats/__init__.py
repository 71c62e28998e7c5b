"""Saved chats: questions, answers and where they came from, in a database beside the catalog."""

"""The context of a question: earlier turns, and the folders and files that it names."""

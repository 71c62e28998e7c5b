"""What a question leans on: earlier turns, and the folders and files that it names."""

"""The user's terminal: its bytes become keys and pastes, and its end becomes the end of the program."""

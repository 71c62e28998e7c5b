"""What a question asks for: one fact, two, one by way of another, or the whole folder."""

"""What is added to an answer about one fact, or speaks against it: its day, a newer holder, another thing."""

"""Teach a small model to select the tokens that the answering model's questions attend to."""

"""Kinds of questions: one fact, two, one by way of another, or the whole folder."""

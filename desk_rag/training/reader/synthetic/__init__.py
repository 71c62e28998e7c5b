"""Training texts made by rule: desk documents, invented facts, questions over prose, with answers in the trained form.

Everything is drawn from the random numbers that the caller brings, so that a seed gives the same texts. Knows no tokens
and no files.
"""

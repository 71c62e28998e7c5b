"""Answer questions that compare numbers: sums over rows, the row or the document with the most or the least."""

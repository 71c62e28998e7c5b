"""Questions about the documents of a folder: totals, counts, lists, the latest, comparisons, changes."""

"""The rooms of the quality harness: data sets, modes, batched answering, scores, the journal and the table."""

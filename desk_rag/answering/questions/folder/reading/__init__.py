"""Facts of documents: kinds, labels, amounts, dates, parties and names."""

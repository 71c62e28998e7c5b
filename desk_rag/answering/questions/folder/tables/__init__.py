"""Answer questions about columns of tables: sums over rows, and the row with the most or the least."""

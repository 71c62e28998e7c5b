"""Power cuts: system calls of a writer are recorded, and the states a cut may leave are rebuilt and judged."""

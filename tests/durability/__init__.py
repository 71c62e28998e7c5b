"""Power cuts: system calls of a writing process recorded, every state a cut may leave rebuilt, each opened and judged."""

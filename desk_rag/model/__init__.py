"""The language model: weights, configuration, prompt format, adapters and attention."""

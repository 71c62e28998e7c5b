"""Small and random models, and chunk KV with random values."""

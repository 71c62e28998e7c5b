"""Data and settings in keys and values: JSON, YAML, TOML, XML."""

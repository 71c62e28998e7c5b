"""Everything that happens to keys and values; knows no disk, no question and no UI."""

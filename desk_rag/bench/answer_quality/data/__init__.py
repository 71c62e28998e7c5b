"""Data sets for `bench quality`, all brought into one form."""

"""Several questions answered at once, where the device gains by it: one load, one pass, each its own answer."""

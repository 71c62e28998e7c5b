"""Which chunk tokens are worth computing anew: several selectors behind one door."""

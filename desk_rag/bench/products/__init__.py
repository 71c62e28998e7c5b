"""Products with weights in 4 bits against what reading their bytes allows."""

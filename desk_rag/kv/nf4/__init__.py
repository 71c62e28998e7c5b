"""Products with nf4 weights that never write them out in 16 bits."""

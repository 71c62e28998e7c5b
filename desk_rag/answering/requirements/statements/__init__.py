"""What a sentence says of the thing that is asked about: that it is over, its contrary, or nothing of it."""

"""How often follow-up questions are answered as well as the same questions written out."""

"""Training texts made by rule, with questions and answers in the trained form."""

"""The two models that ship, as plain torch modules: no question has to wait for the transformers library."""

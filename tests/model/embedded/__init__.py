"""The models that ship, as plain torch modules."""

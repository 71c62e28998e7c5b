"""Makes the models that ship: the reader and the pointer. Not part of the wheel."""

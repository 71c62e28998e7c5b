"""The terminal UI: a projection of answer events and index events. Holds no model."""

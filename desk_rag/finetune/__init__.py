"""Teaching a model to read independently prefilled chunks: data, rows, training, result. Nothing below imports it."""

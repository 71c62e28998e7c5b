"""The cost of `desk-rag adapt`: time and memory for models of published shapes."""

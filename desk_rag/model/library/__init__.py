"""Models that are on this machine already: those of Ollama, of LM Studio, and of the Hugging Face cache."""

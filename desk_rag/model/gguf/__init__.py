"""Models in GGUF, the form of llama.cpp, Ollama and LM Studio: checked, described, and de-quantised."""

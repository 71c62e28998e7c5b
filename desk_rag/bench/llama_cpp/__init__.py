"""The embedded reader in desk-rag and in llama.cpp, on the same CPU and over the same prompts."""

"""GGUF files: written here, read, compared with the safetensors they were made from, and damaged in many ways."""

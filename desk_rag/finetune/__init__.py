"""What `desk-rag finetune` runs: teach a model to read chunks that were prefilled apart."""

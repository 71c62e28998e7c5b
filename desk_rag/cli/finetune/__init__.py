"""Run `desk-rag finetune`: options, data, training, and what changed."""

"""Commands that teach a model: `finetune` and `adapt`."""

"""Learn what a model's chunk KV lacks for having been prefilled apart, from its own full prefill."""

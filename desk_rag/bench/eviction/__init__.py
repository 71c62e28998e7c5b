"""Which chunk KV to delete when space runs out: the policy of the store and others on made-up traces."""

"""Baselines that chunk caching is compared with: loaders, codings, selectors, full prefill."""

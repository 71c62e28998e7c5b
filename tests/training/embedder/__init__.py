"""Tests of training the embedder."""

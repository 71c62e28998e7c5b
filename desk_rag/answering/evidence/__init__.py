"""Selection of the sentence that an answer quotes, and verification that it supports the answer."""

"""Words and marks of the trained prompt frame, shared by `prompt` and the training of the reader.

This module imports nothing, so that the training depends on no other part of the product.
"""

NO_ANSWER = "I could not find that in the documents."

END_OF_TEXT = "<|endoftext|>"
DOC_START, DOC_END, IM_START, IM_END = "<|doc_start|>", "<|doc_end|>", "<|im_start|>", "<|im_end|>"

HEAD = f"{IM_START}system\nAnswer the question using the documents.{IM_END}\n{IM_START}user\n"
"""The shared prefix."""
CHUNK_OPEN, CHUNK_CLOSE = DOC_START, f"{DOC_END}\n"
QUESTION_OPEN = "Question: "
TAIL = f"{IM_END}\n{IM_START}assistant\n"

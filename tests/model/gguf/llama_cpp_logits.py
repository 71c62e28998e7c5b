"""Run as a program: the logits that llama.cpp computes over a GGUF file, in a process without torch.

Arguments: the file, the token ids with commas between them, the file for the logits (.npy), the size of the context.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def logits(file: str, ids: list[int], context_length: int) -> Any:
    """One row per token, in fp32 throughout."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp does not load {file}")
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = context_length
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = 0  # fp32
    parameters.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, parameters)
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    for index, token in enumerate(ids):
        batch.token[index], batch.pos[index], batch.logits[index] = token, index, 1
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
    batch.n_tokens = len(ids)
    if llama_cpp.llama_decode(context, batch):
        raise SystemExit("llama.cpp failed to decode")
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = (llama_cpp.llama_get_logits_ith(context, index) for index in range(len(ids)))
    return np.stack([np.ctypeslib.as_array(row, (words,)).copy() for row in rows])


if __name__ == "__main__":
    np.save(sys.argv[3], logits(sys.argv[1], [int(part) for part in sys.argv[2].split(",")], int(sys.argv[4])))

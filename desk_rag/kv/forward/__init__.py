"""Forward passes over a filled cache: the fused decoder, CUDA graphs, the CPU step, sparse rows."""

"""Trees of rollouts as tensors: shared prefixes computed once, or row by row."""

"""Kernels: faster implementations of torch operations, each used where measured to be faster."""

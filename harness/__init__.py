"""HGEMM Arena: strict verification and timing of half-precision matrix-multiply kernels."""

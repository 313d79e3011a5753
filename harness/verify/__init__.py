"""Verification: inputs, float64 references, and what an output must satisfy."""

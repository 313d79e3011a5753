"""Families of kernels: how each renders a configuration and plans a problem."""

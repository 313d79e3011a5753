"""Baselines: each yields Operations and describes what it chose."""

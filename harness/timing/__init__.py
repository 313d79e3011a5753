"""Timing: windows, rounds and the statistics that turn them into ratios with intervals."""

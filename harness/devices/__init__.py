"""Devices: one implementation per kind of hardware behind one protocol."""

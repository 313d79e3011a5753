"""Importers of what others publish. Nothing imported was measured here, so nothing of it is ever ranked."""

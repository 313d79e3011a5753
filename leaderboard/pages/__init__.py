"""Pages of the app: thin scripts over pure functions."""

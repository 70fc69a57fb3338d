"""Planted faults: `python -m tests.planted` shows that the tests find each of faults.toml."""

"""What somebody meets first: `tfdist new` (new.py) and `tfdist docs` (pages.py)."""

"""Commands for the start: `tfdist new` (new.py) and `tfdist docs` (docs_pages.py)."""

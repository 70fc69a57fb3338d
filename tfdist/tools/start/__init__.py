"""What somebody meets first: `tfdist new` (new.py), `tfdist docs` (pages.py), and the completion of shells."""

"""What somebody meets first: `tfdist new` (new.py), `tfdist docs` (pages.py), and the completion of shells.

look.py looks at data through the reader of a config, templates.py writes the files of `new`.
Imports the wing config, and no other of tools.
"""

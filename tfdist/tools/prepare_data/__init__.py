"""Data before a job, `python -m tfdist prepare --config=...`: command.py; --size writes resized_files.py."""

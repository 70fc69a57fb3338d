"""Data before a job, `python -m tfdist prepare --config=...`: command.py; --to=raw|jpeg writes resized_files.py."""

"""Data before a job: `python -m tfdist prepare --config=...`.

command.py        downloads, opens and reads the data of a config; its flags
resized_files.py  writes images once, at the size that training needs: --to=raw|jpeg

Imports config, cluster, data and other tools.
"""

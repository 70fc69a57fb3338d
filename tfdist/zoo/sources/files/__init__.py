"""What the sources of files share.

record_files.py  records of TFRecord and ArrayRecord files
decoding.py      images of files, and the examples of a batch decoded one by one
from_disk.py     messages about damaged files, and hashes of files
"""

"""Cached examples, in memory or on a local disk.

cached_source.py  a source that reads each example once: `config.data.cache`
arrays.py         examples in host memory
example_files.py  examples in files, complete or not there

Imports config and report.
"""

from tfdist.data.cache.arrays import InMemoryArrays, collect, fits
from tfdist.data.cache.cached_source import CachedSource, add_cache

__all__ = ["CachedSource", "InMemoryArrays", "add_cache", "collect", "fits"]

"""Cached examples, in memory or on a local disk. Imports config and report."""

from tfdist.data.cache.arrays import InMemoryArrays, collect, fits
from tfdist.data.cache.cached_source import CachedSource, add_cache

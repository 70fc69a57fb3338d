"""Cached examples, in memory or on a local disk. Imports config and report."""

from tfdist.data.cache.cached_source import InMemoryArrays, add_cache, in_memory

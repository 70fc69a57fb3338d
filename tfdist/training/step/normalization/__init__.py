"""Batch normalisation that communicates: statistics over examples of several replicas.

synchronized_norm.py   statistics over all replicas, one all-reduce per layer
spanning_groups.py     statistics over groups of examples of neighbouring replicas
"""

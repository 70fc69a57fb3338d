"""Layers that compute something of the whole batch: statistics over examples of several replicas, penalties.

synchronized_norm.py   statistics over all replicas, one all-reduce per layer
spanning_groups.py     statistics over groups of examples of neighbouring replicas
activity_penalties.py  those that would depend on the number of replicas are refused
"""

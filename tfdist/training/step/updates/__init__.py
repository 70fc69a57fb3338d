"""Updates of the weights by an optimizer.

fused_updates.py  the updates of Keras' optimizers in fewer kernels
by_lookup.py      the updates of Keras' optimizers from row moments
row_moments.py    a table's gradient: the sums over lookups, and those of squares, of fixed size
work_sharing.py   costly parts of an update, divided between the replicas
"""

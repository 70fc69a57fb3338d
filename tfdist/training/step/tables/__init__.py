"""Gradients of tables, such as an embedding's: a row for each lookup.

sparse_gradients.py  which gradients stay sparse, and how their rows are added
row_gather.py        the rows of all replicas
"""

"""What only a run on several workers needs: a run on one does not import it.

multi_worker.py connects the workers: rendezvous, strategy, heartbeats, a first sum over all replicas with a time limit;
tcp_ring.py sums the gradients of workers on CPUs; broadcasts.py sends what the chief has, to new variables too;
malloc.py keeps freed memory.
"""

"""What only a run on several workers needs; a run on one worker does not import it.

multi_worker.py connects the workers: rendezvous, strategy, heartbeats, a first all-reduce with a time limit;
tcp_ring.py sums the gradients of CPU workers; broadcasts.py broadcasts bytes and variables of the chief, and initial
values.
"""

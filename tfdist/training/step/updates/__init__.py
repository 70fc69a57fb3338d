"""Updates of the weights by an optimizer.

fused_updates.py  the updates of Keras' optimizers in fewer kernels
work_sharing.py   costly parts of an update, divided between the replicas
"""

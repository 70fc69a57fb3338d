"""How an optimizer updates the weights.

fused_updates.py  the updates of Keras' optimizers in fewer kernels
work_sharing.py   costly parts of an update, divided between the replicas
"""

"""Random numbers of a step: functions of seed, step, micro-batch and replica, so that a resumed run draws the same.

seed_generators.py     keras.random and the layers that use it, such as dropout
stateful_random.py     tf.random
"""

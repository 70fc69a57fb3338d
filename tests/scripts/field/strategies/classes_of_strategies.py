import json
import os
import socket

import numpy as np
import tensorflow as tf
from recording import record

with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}})

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=2**20)
second = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)
found = [type(second).__name__, isinstance(second, tf.distribute.MultiWorkerMirroredStrategy)]
found += [resolver.task_type, resolver.task_id, second.cluster_resolver.task_id, second.cluster_resolver.task_type]
found += [isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver)]


class Named(tf.distribute.MirroredStrategy):
    def __init__(self, name, **keywords):
        super().__init__(**keywords)
        self.name = name

    def sum(self, values):
        return self.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)


first = Named("mine", cross_device_ops=tf.distribute.ReductionToOneDevice())
found += [first.name, type(first) is Named, isinstance(first, tf.distribute.MirroredStrategy)]
found += [issubclass(Named, tf.distribute.Strategy), float(first.sum(first.run(lambda: tf.constant(1.0)))) >= 1.0]

with first.scope():
    found += [tf.distribute.get_strategy() is first, tf.distribute.has_strategy()]
    variable = tf.Variable(np.ones(3))
found += [first.extended.variable_created_in_scope(variable), tf.distribute.has_strategy()]
record(found=found)

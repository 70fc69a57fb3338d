"""Clusters of one worker for tests that build parts of a run without the start of one."""

import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor
from tfdist.cluster.discovery.roster import Roster
from tfdist.config.schema import ClusterOptions


def of_devices(*devices: str, implementation: str = "ring") -> Cluster:
    """A cluster of one worker with a replica on each of `devices`, such as "/CPU:0"."""
    return Cluster(
        strategy=tf.distribute.MirroredStrategy(devices),
        rank=0,
        num_workers=1,
        num_replicas=len(devices),
        roster=Roster(),
        monitor=HeartbeatMonitor(rank=0, members=[], options=ClusterOptions()),
        implementation=implementation,
    )

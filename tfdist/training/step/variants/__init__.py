"""Other training steps than `train_step`, each chosen by a field of the config; no other module imports them.

local_sgd.py          `local_steps`: replicas update by themselves, then average
virtual_replicas.py   `virtual_replicas`: the same bits on any number of replicas; puts the run together
shards.py             its step: a replica computes its shards one after another
sharded_objective.py  its objective: another one, shard by shard
exact_sums.py         its sums of losses and metrics
audited_step.py       `config.consistency.audit`: in some steps a replica computes the share of the next one, too
integers.py           its sums: gradients as integers with one power of two a tensor
noise_scale.py        `report.noise_scale`: measures the gradient noise scale
power_sgd.py          `config.communication.compression`: gradients are sent as two factors
factors.py, error_state.py   its mathematics; its errors, which differ between replicas, in checkpoints
sharding/             `train.shard_optimizer`: the slots of the optimizer are divided between the replicas
"""

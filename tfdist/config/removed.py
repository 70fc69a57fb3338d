"""Fields and targets of configs that were removed, each with what to use instead. Imports no TensorFlow.

A config that uses one of these gets this message, not a guess at a similar name.
"""

import re

_RUN_ENDS = "a run whose replicas differ ends; the same command resumes from the newest checkpoint."
_KERAS_TENSORBOARD = "add {'target': 'keras.callbacks:TensorBoard', 'log_dir': 'WORKDIR/tensorboard/keras', "
_KERAS_TENSORBOARD += "'histogram_freq': 1} to config.callbacks."
_MOVED = "it is {} now, with the same arguments."
# A field of a config, or a module or function as in a target -> what to use instead.
INSTEAD = {
    "config.checkpoint.export_preprocessing": "make keras.layers.Rescaling the first layer of the model, and set "
    "config.data.prepare to {'target': 'tfdist.zoo.prepare:image_bytes'}, which leaves bytes.",
    "config.checkpoint.keep_every": "set checkpoint.keep to the number of checkpoints to keep.",
    "config.data.auto_shard": "TensorFlow divides the batches of the textbook pipeline by its policy DATA; to train on "
    "a tf.data.Dataset of files, call tfdist.fit in a script (docs/from-fit.md).",
    "config.report.verbose": "metrics.jsonl has the learning rate and the times of each worker; TensorBoard has the "
    "learning rate.",
    "config.report.graph": _KERAS_TENSORBOARD,
    "config.report.histograms": _KERAS_TENSORBOARD,
    "config.report.notify": "`tfdist runs` says how runs have ended, and so does the exit code of a run; Slurm sends "
    "mail with --mail-type=END,FAIL.",
    "config.report.noise_scale": "`tfdist sweep` trains with several batch sizes, and compares the runs.",
    "config.communication.compression": 'set communication.dtype to "float16", or to "bfloat16" without NCCL, which '
    "halves the bytes.",
    "config.consistency.audit": "the comparisons of consistency.every find states that differ, and tfdist verify "
    "trains parts of a run again.",
    "config.consistency.action": _RUN_ENDS,
    "config.consistency.limit": _RUN_ENDS,
    "config.train.shard_optimizer": "use train.micro_batches, or an optimizer with fewer slots; for a model that does "
    "not fit on one GPU, use FSDP in PyTorch.",
    "config.train.asynchronous": "tfdist asynchronous trains with parameter servers (docs/consistency.md).",
    "config.train.local_steps": "run tfdist local_sgd --local_steps=4, a lesson (docs/consistency.md).",
    "config.train.recompute_mb": "name layers in train.recompute, or make them in a keras.RematScope.",
    "config.cluster.pause_epochs": "SIGTERM stops and saves a run, and the same command resumes it.",
    "config.cluster.keep_freed_memory": "set MALLOC_MMAP_MAX_=0, MALLOC_TRIM_THRESHOLD_=-1 and MALLOC_ARENA_MAX=1 in "
    "the environment (docs/speed.md).",
    "tfdist.tools.many_runs.trackers": "name the library's own callback, such as mlflow.keras:MlflowCallback "
    "(docs/many-runs.md).",
    "tfdist.zoo.models:resnet9": "use tfdist.configs.networks.airbench:network, which learns CIFAR-10 in fewer epochs.",
    "tfdist.zoo.optimizers": "lookahead_sgd and muon are in tfdist.configs.networks.optimizers.",
    "tfdist.zoo.sources:cifar": _MOVED.format("tfdist.configs.networks.cifar:cifar"),
    "tfdist.zoo.sources:idx": "keras.datasets and tensorflow-datasets have such data: use tfdist.zoo.sources:npz or "
    "tfdist.zoo.sources:tfds.",
    "tfdist.zoo.sources:imagenet": _MOVED.format("tfdist.configs.networks.imagenet:imagenet"),
    "tfdist.zoo.sources:line": _MOVED.format("tfdist.configs.networks.classic:points"),
    "tfdist.zoo.sources:text": _MOVED.format("tfdist.configs.networks.char_gpt:text"),
    "tfdist.zoo.sources:prepared": "name the source of the images; to scale them once, see docs/your-data.md.",
    "tfdist.zoo.schedules:exponential": _MOVED.format("tfdist.zoo.schedules:range_test"),
}
# Removed fields that affected the training -> the values with which a run trained as it does now.
TRAINED = {"config.data.auto_shard": "auto", "config.train.asynchronous": False, "config.train.local_steps": 1}


def sentence(name: str) -> str:
    """Returns the sentence for a name in `INSTEAD`, or for a field within it; "": nothing of this name was removed."""
    found = (instead for gone, instead in INSTEAD.items() if name == gone or name.startswith(f"{gone}."))
    return next((f"{name} was removed: {instead}" for instead in found), "")


def sentence_for_error(error: BaseException) -> str:
    """Returns the sentence for an error of a config file that sets a removed field; "": another error."""
    named = re.findall(r"'(\w+)'", str(error)) if isinstance(error, TypeError | AttributeError) else []
    fields = (name for name in INSTEAD if name.startswith("config."))
    return next((sentence(name) for name in fields if name.rpartition(".")[2] in named), "")

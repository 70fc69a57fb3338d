"""ResNet50 on CIFAR-10 at 32x32 pixels, for scaling on 1, 2, 4 and 8 replicas: the batch grows with them.

python -m tfdist.main --config=configs/cifar_resnet50.py --config.data.source.download=true
python -m tfdist scaling --config=configs/cifar_resnet50.py --replicas=1,2,4,8
"""

from tfdist import config as c
from tfdist.configs import cifar_resnet50v2


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    config = cifar_resnet50v2.get_config()
    config.model |= {"name": "ResNet50", "input_shape": (32, 32, 3)}
    config.data.prepare["resize"] = None
    config.data.batch_size = 128
    config.learning_rate.reference_batch_size = 128
    return config

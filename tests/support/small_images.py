"""A data set of TensorFlow Datasets that is made where others are downloaded: `small_images`."""

import numpy as np
import tensorflow_datasets

COUNTS = {"train": 61, "test": 9}


def picture(key):
    """The image of the example `key`, of a size of its own."""
    number = int(key)
    return np.random.default_rng(number).integers(0, 256, (5 + number % 3, 4, 3)).astype(np.uint8)


class SmallImages(tensorflow_datasets.core.GeneratorBasedBuilder):
    """Images of 5x4 pixels with a label, a text, and a sequence of any length."""

    VERSION = tensorflow_datasets.core.Version("1.0.0")

    def _info(self):
        types = tensorflow_datasets.features
        features = {"image": types.Image(shape=(5, 4, 3)), "mask": types.Image(shape=(5, 4, 1)), "key": types.Text()}
        features |= {"label": types.ClassLabel(names=["even", "odd", "never"])}
        features |= {"coarse": types.ClassLabel(num_classes=7), "tags": types.Sequence(np.int64)}
        keys = ("image", "label")
        features = types.FeaturesDict(features)
        return tensorflow_datasets.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in COUNTS}

    def _generate_examples(self, split):
        for number in range(COUNTS[split]):
            key = str(number if split == "train" else 1000 + number)
            image = picture(key)[:5]
            numbers = {"label": number % 2, "coarse": number % 7, "tags": list(range(number % 4))}
            yield key, {"image": image, "mask": image[:, :, :1], "key": key, **numbers}

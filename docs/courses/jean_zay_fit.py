"""The training of IDRIS' page with Keras' `fit`: ResNet50 on CIFAR-10, 64 images per GPU.

    srun python -m tfdist.run --workdir=runs/fit docs/courses/jean_zay_fit.py --replicas=8 --data=cifar-10-batches-py
    python docs/courses/jean_zay_fit.py                                    # Keras alone, one device, random images

The page's lines that make a strategy are missing: tfdist.run has made it before the program starts.
"""

import jean_zay_data as data
import keras

options = data.flags(__doc__).parse_args()
global_batch = options.batch * options.replicas
keras.utils.set_random_seed(data.SEED)
train_dataset, test_dataset = data.datasets(options, global_batch)

model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None)
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    # In proportion to the global batch.
    optimizer=keras.optimizers.SGD(0.001 * options.replicas),
    metrics=["accuracy"],
)
model.fit(train_dataset, epochs=options.epochs, steps_per_epoch=options.steps, validation_data=test_dataset, verbose=2)

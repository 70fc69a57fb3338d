"""Functions that configs name by dotted path: models, sources, preprocessing, objectives, schedules.

    models.py                                  networks; normalization.py: batch normalisation in groups
    sources/                                   random access to examples: arrays, images, tables, TFRecord, tfds
    prepare.py, augmentation.py, inception.py  preprocessing and augmentation, without state
    objectives/                                one loss and metrics per example
    schedules.py                               learning rates
    splits.py, stateless_random.py             split notation; random numbers per example
    decoding.py                                decodes and scales image files

A config may name functions of any package with the same signatures. Imports config, data and report. No package of
tfdist imports the zoo; configs and their networks do.
"""

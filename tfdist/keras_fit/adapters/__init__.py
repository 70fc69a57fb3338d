"""Data adapters: the data arguments of `model.fit` as one replica's shard of each global batch.

    make_adapter.py         chooses the adapter: make_data_adapter(x, y, sample_weight, options) -> DataAdapter
    base.py                 DataAdapter, RandomAccessAdapter, BatchAdapter, DataOptions
    preprocess.py           the preprocessor of a keras-hub task
    py_dataset.py           keras.utils.PyDataset and generators
    rows_of_steps.py        values that are not finite in the data of some steps
    data_errors.py          TensorFlow's errors about data, explained
    inspect_dataset.py      properties of a user's tf.data pipeline
    rebuild_pipeline.py     shards a tf.data pipeline before its maps; without its shuffles, or with new ones
    shuffle_passes.py       the passes that earlier calls have taken from a shuffle

Data with random access is sharded before it is read; other pipelines are sharded after batching.
"""

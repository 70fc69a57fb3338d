"""Parts of the input that few runs need; see `PARTS` in `config/schema.py`.

fixed_shards.py   each worker reads the same part of the examples in every epoch
textbook.py       shuffle, batch and experimental_distribute_dataset
on_gpu.py         images are normalised on the GPU
"""

"""Commands beside training: `python -m tfdist doctor`, `prepare`, `batch_size`, `scaling`, `benchmark` and others.

Each command is one module or package with `run()` or `main()`. Imports every wing but keras_fit; nothing imports it.
"""

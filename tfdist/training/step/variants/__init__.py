"""Training steps other than `train_step`, each chosen by a field of the config; only its feature imports it."""

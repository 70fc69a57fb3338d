"""Other training steps than `train_step`, each chosen by a field of the config; no other module imports them."""

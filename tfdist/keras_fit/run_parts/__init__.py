"""What a run of a compiled model is made of, beside its model; `keras_fit/setup.py` puts it together."""

"""What a run of a compiled model is made of, beside its model; `keras_fit/make_run.py` puts it together."""

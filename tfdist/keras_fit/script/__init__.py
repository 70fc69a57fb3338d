"""Changes in Keras and Python while `python -m tfdist.run` runs an unchanged script; model_methods.py installs them."""

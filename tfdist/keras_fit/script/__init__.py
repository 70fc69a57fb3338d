"""Changes in Keras and Python while `python -m tfdist.run` runs an unchanged script; run.py installs them."""

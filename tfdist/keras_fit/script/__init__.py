"""Changes in Keras and Python while `python -m tfdist.run` runs an unchanged script.

model_methods.py    Model.fit, evaluate and predict become tfdist's; variables are made in the cluster's scope
chief_output.py     only the chief prints and writes
"""

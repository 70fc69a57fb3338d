"""What `python -m tfdist.run` changes in Keras and Python while an unchanged script runs.

model_methods.py    Model.fit, evaluate and predict become tfdist's; variables are made in the cluster's scope
chief_output.py     only the chief prints and writes
"""

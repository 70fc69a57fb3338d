"""Changes in Keras and Python while `python -m tfdist.run` runs an unchanged script.

model_methods.py    Model.fit, evaluate and predict become tfdist's; variables are made in the cluster's scope
context.py          whether the script's own code runs, and what the chief does for all workers
files.py            only the chief prints and writes; the other workers wait until a file is written
handles.py          files that are open for writing
temporary.py        temporary files and directories, which the workers of a host share
processes.py        commands that the script starts run on the chief
entropy.py          what a process draws by itself, and the time, are the same on all workers
"""

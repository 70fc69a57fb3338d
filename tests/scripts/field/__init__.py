"""Scripts as users write them, run by Keras alone and by tfdist.run: do they give the same?

    python -m tests.scripts.field [WAY...] [NAME...]      # all, or those whose names contain one of these

Each script trains with plain Keras on one device, and in the ways of `trial.WAYS`, or in those that are named, such as
"two by two": two workers of two devices each.
It calls `record(name=value, ...)` with everything that it has found: histories, weights, predictions, files that it has
read back. The first lines of a script may say what else than equal numbers is expected:

    # draws: dropout             random numbers differ from Keras, so values are compared roughly
    # per replica: batch norm    values of several replicas may differ, and the run says so with these words
    # refused: OneDeviceStrategy the run ends with a message that has these words
    # refused on several replicas: stateful
    # refused on two workers: has other data
    # told: a database         two workers say so with these words
    # own process                a separate process: one that is forked has the hashes of texts of its parent
    # exits                      the exit code is not 0
"""

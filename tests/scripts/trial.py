"""Runs scripts of Keras' guides under Keras' own fit or under tfdist.fit, and writes down what came out.

usage: python tests/scripts/trial.py keras|tfdist RESULTS.json NAME...
"""

import contextlib
import functools
import importlib
import json
import sys

import keras
import numpy as np

import tfdist
from tfdist import config as config_lib


def main(how: str, path: str, *names: str) -> None:
    if how == "keras":
        scope, chief = contextlib.nullcontext, True
        fit, evaluate, predict = keras.Model.fit, keras.Model.evaluate, keras.Model.predict
    else:
        cluster = tfdist.connect(config_lib.ClusterOptions(connect_seconds=120.0))
        scope, chief = cluster.scope, cluster.is_chief
        fit, evaluate, predict = (
            functools.partial(getattr(tfdist, name), cluster) for name in ("fit", "evaluate", "predict")
        )
    found = {}
    for name in names:
        keras.utils.set_random_seed(0)
        script = importlib.import_module(name)
        history, evaluated, predicted = script.main(scope, fit, evaluate, predict)
        found[name] = {"history": history.history, "evaluated": evaluated, "predicted": np.asarray(predicted).tolist()}
    if chief:
        with open(path, "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])

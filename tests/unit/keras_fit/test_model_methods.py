"""What `python -m tfdist.run` replaces in Keras' models."""

import functools
import types

import keras
import tensorflow as tf

from tfdist.keras_fit.script import model_methods


def test_variables_are_replicated_after_clear_session():
    made = []

    def noted(next_creator, **keywords):
        variable = next_creator(**keywords)
        made.append(float(variable))
        return variable

    scope = functools.partial(tf.variable_creator_scope, noted)
    cluster = types.SimpleNamespace(scope=scope, strategy=tf.distribute.get_strategy())
    with model_methods.distribute_methods(cluster, None):
        tf.Variable(1.0)
        keras.utils.clear_session()
        tf.Variable(2.0)
    tf.Variable(3.0)
    assert made == [1.0, 2.0]


def test_calls_of_fit_after_a_global_seed_have_the_seeds_that_followed_it_first():
    seeds, given = model_methods.FitSeeds(), []
    found = [seeds.take()]
    for seed in (5, 5, 6, 5):
        seeds.set_global(given.append, seed)
        found += [seeds.take(), seeds.take()]
    assert found == [0, 1, 2, 1, 2, 3, 4, 1, 2] and given == [5, 5, 6, 5]

"""Objectives: loss and metrics with one value per example; tfdist computes the means over all replicas."""

from tfdist.zoo.objectives.classifier import classification
from tfdist.zoo.objectives.of_keras import keras_loss
from tfdist.zoo.objectives.regressor import regression

__all__ = ["classification", "keras_loss", "regression"]

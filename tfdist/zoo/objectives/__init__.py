"""Objectives: loss and metrics with one value per example; tfdist computes the means over all replicas.

classifier.py  cross-entropy and accuracy of logits, or of a softmax
regressor.py   squared and absolute errors
of_keras.py    the losses and metrics of Keras by name
outputs.py     the outputs of a model: logits or probabilities
"""

from tfdist.zoo.objectives.classifier import classification
from tfdist.zoo.objectives.of_keras import keras_loss
from tfdist.zoo.objectives.regressor import regression

__all__ = ["classification", "keras_loss", "regression"]

from tfdist.keras_fit.api import evaluate as evaluate
from tfdist.keras_fit.api import fit as fit
from tfdist.keras_fit.api import predict as predict
from tfdist.keras_fit.connect import connect as connect
from tfdist.keras_fit.own_step.own_loop import batches as batches
from tfdist.keras_fit.own_step.own_loop import step as step

"""The training state in a checkpoint: what is saved is restored, also from another release."""

from tfdist.training.state import BestValue, TrainingState


def test_the_state_is_restored():
    best = BestValue(value=0.5, step=3, metric_and_mode="accuracy, max")
    state = TrainingState(step=7, best=best, logs={"loss": 1.0})
    state.add({"loss": 3.0, "examples": 2.0}, steps=2, seconds=0.25)
    saved = state.to_json()
    assert (saved["best"], saved["best_step"], saved["best_of"]) == (0.5, 3, "accuracy, max")
    assert saved["seconds"] == 0.25 and saved["totals"] == {"loss": 3.0, "examples": 2.0}
    assert TrainingState.from_json(saved) == state


def test_checkpoints_keep_the_names_that_other_releases_gave_to_fields():
    state = TrainingState(step=7, last_evaluated_step=6, completed_epochs=2)
    saved = state.to_json()
    assert (saved["evaluated"], saved["epochs"]) == (6, 2) and "completed_epochs" not in saved
    del saved["skipped"], saved["seconds"]
    assert TrainingState.from_json(saved | {"of_a_later_release": 1}) == state

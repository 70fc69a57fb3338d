"""The training state in a checkpoint of another release."""

from tfdist.training.state import TrainingState


def test_checkpoints_keep_the_names_that_other_releases_gave_to_fields():
    state = TrainingState(step=7, last_evaluated_step=6, completed_epochs=2)
    saved = state.to_json()
    assert (saved["evaluated"], saved["epochs"]) == (6, 2) and "completed_epochs" not in saved
    del saved["skipped"], saved["seconds"]
    assert TrainingState.from_json(saved | {"of_a_later_release": 1}) == state

"""How the framework calls the function of each spec of a config."""

# The number of its positional arguments, and the keywords that the framework adds.
CALLS = {
    "model": (0, ()),
    "data.source": (1, ()),
    "data.prepare": (2, ("training",)),
    "objective": (2, ("training",)),
    "optimizer": (1, ()),
    "learning_rate.schedule": (1, ("total_steps", "warmup_steps")),
}

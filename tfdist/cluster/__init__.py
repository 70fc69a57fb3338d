"""Who takes part in a run, how the workers find each other, and the strategy that joins them."""

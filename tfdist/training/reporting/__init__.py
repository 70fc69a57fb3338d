"""What the loop reports about a run, through the reporter."""

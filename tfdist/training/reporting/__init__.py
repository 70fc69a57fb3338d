"""What the loop tells of a run, through the reporter."""

"""The data stream: a pure function of (seed, epoch, position), with no state to save."""

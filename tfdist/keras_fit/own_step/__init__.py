"""The steps of a script's model, Keras' own or the user's: each replica runs them on its shard."""

"""What a command line says and means, for `tfdist.config.flags`: help, messages, arguments of specs, names of commands.

Imports of this package `schema`, `specs`, `diff`, `config_dict`, `user_code` and, for tools, `flags`; no TensorFlow.
"""

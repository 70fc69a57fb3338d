"""The configuration: typed fields, specs that name functions by dotted path, command-line flags.

    Config and its sections   schema.py: all fields with their meaning; `from tfdist import config as c`
    build, partial            specs.py: resolve a dotted path, check its arguments, call it
    validate                  validate.py: types, ranges and contradictions of a config
    flatten, differences      diff.py: dotted field names; differences between two configs
    load                      load.py: `--config=FILE` and `--config.section.field=VALUE`
    Parser                    tool_flags.py: the flags of all commands

Imports no other package except `configs`, and no TensorFlow.
"""

from tfdist.config.schema import (
    Checkpoint,
    ClusterOptions,
    Communication,
    Config,
    Consistency,
    Data,
    Evaluation,
    Every,
    LearningRate,
    Report,
    Train,
)

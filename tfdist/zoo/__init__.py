"""Models, sources, preprocessing, objectives and schedules that the shipped configs name by dotted path.

Nothing here is special: a config may name functions of any package, with the same signatures. This package
imports none of tfdist's other modules, and they import none of it.
"""

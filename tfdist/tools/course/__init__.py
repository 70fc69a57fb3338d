"""The exercises of four public courses, each as one command: `python -m tfdist course cte_power --task=7`.

command.py  flags, lists, running a task, and the page's answer beside one's own
task.py     what a course and a task consist of, and where a task's results are read from
The tasks are in configs/courses/NAME.yaml.
"""

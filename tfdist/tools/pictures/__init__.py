"""The pictures of the tools, and the command `tfdist plot`: PNG files of 200 dpi, and SVG files with text as text.

style.py has fonts, colours and files for all of them; a module for each subject draws it: curves.py (metrics.jsonl),
scaling.py. plot.py is the command. Without matplotlib, which is an optional dependency, the commands print how to
install it, and write only their tables.
"""

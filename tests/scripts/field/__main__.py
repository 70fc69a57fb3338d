"""Runs the scripts and prints the table: python -m tests.scripts.field [WAY...] [NAME...]"""

import sys

from tests.scripts.field import trial

if __name__ == "__main__":
    sys.exit(trial.main(sys.argv[1:]))

"""`python -m tfdist.run` on logical CPU devices: python tests/support/run_on_devices.py DEVICES SCRIPT [its flags]"""

import functools
import sys

from tfdist import config, run
from tfdist.keras_fit import connect

if __name__ == "__main__":
    options = config.ClusterOptions(logical_devices=int(sys.argv.pop(1)), connect_seconds=240)
    connect.connect = functools.partial(connect.connect, options)
    run.main()

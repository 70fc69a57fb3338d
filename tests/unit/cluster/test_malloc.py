"""malloc keeps freed memory where nobody has chosen otherwise; looked at from outside, in processes of their own."""

import platform
import subprocess

import pytest
from launching import python

# Frees 200 buffers of 1 MB that were all written to, and prints what was asked for and how much memory is left, in MB.
PROGRAM = """
import os, sys
from tfdist import config
from tfdist.cluster.several_workers import malloc
kept = malloc.keep_freed_memory(config.ClusterOptions(keep_freed_memory=sys.argv[1] == "on"), os.environ)
assert malloc.keep_freed_memory(config.ClusterOptions(), os.environ) == kept
buffers = [bytearray(b"x") * 2**20 for _ in range(200)]
del buffers
print(kept, int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") // 2**20)
"""
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")


@pytest.mark.parametrize(
    ("switch", "variables", "kept"),
    [
        ("on", {}, True),
        ("off", {}, False),
        ("on", {"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ("on", {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}, False),
    ],
)
def test_freed_memory_is_kept_unless_the_user_has_chosen_otherwise(switch, variables, kept):
    done = python("-c", PROGRAM, switch, start=subprocess.run, **variables)
    said, megabytes = done.stdout.split()
    assert said == str(kept) and (int(megabytes) > 200 if kept else int(megabytes) < 150)

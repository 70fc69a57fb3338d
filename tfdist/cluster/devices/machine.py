"""Whether TensorFlow can run on this machine, before it is imported: processor and versions.

Imports no TensorFlow.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Collection, Mapping

from tfdist.cluster.devices import onednn

# What tfdist supports; pyproject.toml has the same.
TENSORFLOW, KERAS = ((2, 18), (2, 23)), ((3, 12), (3, 17))


def num_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def why_unsupported(architecture: str, flags: Collection[str], versions: Mapping[str, str | None]) -> str:
    """Returns why TensorFlow cannot be imported here or a version is not supported, and what to do; "": all is well.

    Args:
        architecture: as `platform.machine`: "x86_64", "aarch64", "ppc64le".
        flags: of the processor, such as "avx2"; empty: unknown.
        versions: the result of `package_versions`.
    """
    if architecture == "x86_64" and flags and "avx" not in flags:
        return (
            'this processor has no AVX instructions, and TensorFlow\'s wheels end with "Illegal instruction" without '
            "them. Use another machine; in a virtual machine, pass on the host's processor (QEMU: -cpu host)."
        )
    if versions["tensorflow"] is None:
        return f"TensorFlow is not installed: {sys.executable} -m pip install 'tensorflow>=2.21,<2.23'"
    for name, (first, end) in (("tensorflow", TENSORFLOW), ("keras", KERAS)):
        found = tuple(int(part) for part in re.findall(r"\d+", versions[name] or "")[:2])
        if found and not first <= found < end:
            needed = f">={first[0]}.{first[1]},<{end[0]}.{end[1]}"
            return (
                f"{name} {versions[name]} is installed, and tfdist needs {name}{needed}. An old version is often in "
                "a module of the site, or in ~/.local: unload the module, and install tfdist in its own environment, "
                "without --system-site-packages: python3 -m venv env && env/bin/pip install tfdist; set "
                "PYTHONNOUSERSITE=1 and unset PYTHONPATH"
            )
    return ""


def check_before_import() -> None:
    """Exits with a message if TensorFlow cannot be imported here, or its version or that of Keras is not supported."""
    if text := why_unsupported(platform.machine(), onednn.read_processor().flags, package_versions()):
        sys.exit(f"tfdist: {text}.")


def package_versions() -> dict[str, str | None]:
    """Returns the versions of TensorFlow and Keras without importing them; None: not installed, "": unknown."""
    return {name: version(name) for name in ("tensorflow", "keras")}


def version(name: str) -> str | None:
    """Returns the version of a distribution; "" if there is only a package of this name, None if there is neither."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # Distributions of other names may provide the package: tensorflow-cpu, tensorflow-rocm, builds of a site.
        return None if importlib.util.find_spec(name) is None else ""

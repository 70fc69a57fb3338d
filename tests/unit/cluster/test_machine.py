"""Machines on which TensorFlow finds no GPU or cannot start, as their files and variables describe them."""

import platform

import pytest
import tensorflow as tf
from launching import REPOSITORY

from tfdist.cluster.devices import gpu_software, machine

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
X86, GH200 = ("x86_64", {"sse4_2", "avx", "avx2"}), ("aarch64", set())


def test_gh200_is_not_sent_in_a_circle(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    text = gpu_software.why_unused({"is_cuda_build": False}, "580.1")
    assert "docs/centres.md" in text and "pip install" not in text  # What was tried already.
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert "pip install 'tensorflow[and-cuda]>=2.21,<2.23'" in gpu_software.why_unused({}, "580.1")


@pytest.mark.parametrize(
    ("here", "versions", "named"),
    [
        (X86, {}, ""),
        (GH200, {}, ""),
        (("x86_64", {"sse4_2"}), {}, "AVX"),
        (X86, {"tensorflow": None}, "TensorFlow is not installed"),
        (X86, {"tensorflow": ""}, ""),  # In a package of another name.
        (X86, {"tensorflow": "2.13.1"}, "2.13.1 is installed, and tfdist needs tensorflow>=2.18,<2.23"),
        (X86, {"keras": "2.15.0"}, "keras 2.15.0 is installed"),
        *((X86, {"tensorflow": accepted}, "") for accepted in ("2.18.1", "2.21.0rc1")),
    ],
)
def test_machines_and_versions_are_refused_before_tensorflow_is_imported(here, versions, named):
    said = machine.why_unsupported(*here, VERSIONS | versions)
    assert named in said and bool(said) == bool(named)


def test_the_supported_versions_are_those_of_the_package():
    project = (REPOSITORY / "pyproject.toml").read_text()
    for name, (first, end) in (("tensorflow", machine.TENSORFLOW), ("keras", machine.KERAS)):
        assert f'"{name}>={first[0]}.{first[1]},<{end[0]}.{end[1]}"' in project


def test_this_machine_and_its_tensorflow_are_accepted():
    found = machine.package_versions()
    assert found["tensorflow"] == tf.__version__
    machine.check_before_import()

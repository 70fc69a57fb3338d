"""Machines on which TensorFlow finds no GPU or cannot start, as their files and variables describe them."""

import platform

import pytest
import tensorflow as tf
from launching import REPOSITORY

from tfdist.cluster.devices import gpu_software, machine

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
CUDA_BUILD = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}
X86, GH200 = ("x86_64", {"sse4_2", "avx", "avx2"}), ("aarch64", set())


@pytest.mark.parametrize(
    ("machine_name", "build", "driver", "named"),
    [
        ("aarch64", {"is_cuda_build": False}, "580.1", ["docs/centres.md"]),  # GH200: pip was tried already.
        (
            "x86_64",
            {"is_cuda_build": False},
            "580.1",
            ["without CUDA", "pip install 'tensorflow[and-cuda]>=2.21,<2.23'"],
        ),
        ("x86_64", CUDA_BUILD, "450.80.02", ["CUDA 12.5.1 or cuDNN 9 is missing", "driver (450.80.02) is too old"]),
    ],
)
def test_the_reason_of_unused_gpus_is_that_of_the_installation(monkeypatch, machine_name, build, driver, named):
    monkeypatch.setattr(platform, "machine", lambda: machine_name)
    text = gpu_software.why_unused(build, driver)
    assert all(words in text for words in named) and (machine_name == "aarch64") == ("pip install" not in text)


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
    assert found["tensorflow"] == tf.__version__.replace("-", "")  # Of a release candidate 2.22.0-rc0.
    machine.check_before_import()

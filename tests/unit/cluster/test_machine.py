"""Machines on which TensorFlow finds no GPU or cannot start, as their files and variables describe them."""

import platform

import pytest
import tensorflow as tf
from launching import REPOSITORY

from tfdist.cluster.devices import machine, unused_gpus
from tfdist.cluster.devices.machine import Machine

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
X86 = Machine(architecture="x86_64", processor_flags=frozenset({"sse4_2", "avx", "avx2"}))
GH200 = Machine(architecture="aarch64", gpus={"nvidia": 4})


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A / with the PCI devices that it is given, as (maker, class), and no driver's library."""
    monkeypatch.setattr(machine.host_gpus, "query", lambda: ())

    def make(*devices, flags="fpu sse4_2 avx avx2"):
        for number, (maker, kind) in enumerate(devices):
            folder = tmp_path / "sys" / "bus" / "pci" / "devices" / f"0000:{number:02x}:00.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{maker}\n")
            (folder / "class").write_text(f"{kind}\n")
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "cpuinfo").write_text(f"processor : 0\nvendor_id : X\nflags\t: {flags}\n")
        return tmp_path

    return make


def test_gpus_of_all_makers_are_counted_and_graphics_in_processors_are_not(root):
    mi250x, ponte_vecchio = ("0x1002", "0x038000"), ("0x8086", "0x038000")
    integrated, network = ("0x8086", "0x030000"), ("0x8086", "0x020000")
    found = machine.read(root(*[mi250x] * 8, ponte_vecchio, integrated, network))
    assert found.gpus == {"amd": 8, "intel": 1}
    assert found.processor_flags == {"fpu", "sse4_2", "avx", "avx2"} and found.architecture == platform.machine()


def test_gh200_is_not_sent_in_a_circle(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    text = unused_gpus.why_unused({"is_cuda_build": False}, [], "580.1")
    assert "conda-forge" in text and "docs/centres.md" in text
    assert "pip install" not in text  # What was tried already.


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (Machine(architecture="x86_64", gpus={"amd": 8}), ("8 GPU(s) of AMD", "docs/centres.md")),
        (Machine(architecture="x86_64", gpus={"intel": 6}), ("6 GPU(s) of INTEL", "2.15")),
        (GH200, ()),
    ],
)
def test_gpus_of_other_makers_have_their_own_advice(here, words):
    note = unused_gpus.of_other_makers(here)
    assert all(word in note for word in words) and bool(note) == bool(words)


def test_the_advice_is_a_wheel_where_there_is_one():
    assert "pip install 'tensorflow[and-cuda]>=2.21,<2.23'" in unused_gpus.advice("nvidia", "x86_64")
    assert "ppc64le" in unused_gpus.advice("nvidia", "ppc64le")


@pytest.mark.parametrize(
    ("here", "versions", "named"),
    [
        (X86, {}, ""),
        (GH200, {}, ""),
        (Machine(architecture="x86_64", processor_flags=frozenset({"sse4_2"})), {}, "AVX"),
        (X86, {"tensorflow": None}, "TensorFlow is not installed"),
        (X86, {"tensorflow": ""}, ""),  # In a package of another name.
        (X86, {"tensorflow": "2.13.1"}, "2.13.1 is installed, and tfdist needs tensorflow>=2.18,<2.23"),
        (X86, {"keras": "2.15.0"}, "keras 2.15.0 is installed"),
        *((X86, {"tensorflow": accepted}, "") for accepted in ("2.18.1", "2.21.0rc1")),
    ],
)
def test_machines_and_versions_are_refused_before_tensorflow_is_imported(here, versions, named):
    said = machine.refusal(here, VERSIONS | versions)
    assert named in said and bool(said) == bool(named)


def test_the_supported_versions_are_those_of_the_package():
    project = (REPOSITORY / "pyproject.toml").read_text()
    for name, (first, end) in (("tensorflow", machine.TENSORFLOW), ("keras", machine.KERAS)):
        assert f'"{name}>={first[0]}.{first[1]},<{end[0]}.{end[1]}"' in project


def test_this_machine_and_its_tensorflow_are_accepted():
    found = machine.package_versions()
    assert found["tensorflow"] == tf.__version__
    machine.check_before_import()

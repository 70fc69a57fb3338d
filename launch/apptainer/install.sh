#!/bin/sh
# Installs tfdist and TensorFlow for NVIDIA GPUs into a new environment; for launch/apptainer/tfdist.def and any container.
#
#     sh install.sh SOURCE ENVIRONMENT
#
# SOURCE: the repository, or a wheel. It needs the network, and micromamba on the PATH; on x86_64 without micromamba it takes
# the system's python3, 3.10 to 3.13, with venv (Debian: python3-venv). Without GPUs: TFDIST_TENSORFLOW=tensorflow sh ...
set -eu
source=$1 environment=$2
versions='>=2.21,<2.23'

case $(uname -m) in
x86_64)
    if command -v micromamba > /dev/null; then
        micromamba create --yes --prefix "$environment" --channel conda-forge python=3.12 pip
    else
        python3 -m venv "$environment"
    fi
    "$environment/bin/pip" install --no-cache-dir "${TFDIST_TENSORFLOW:-tensorflow[and-cuda]}$versions" "$source"
    ;;
aarch64)
    # CONDA_OVERRIDE_CUDA: the machine that builds may have no GPU. The build string picks one with CUDA.
    export CONDA_OVERRIDE_CUDA="${CONDA_OVERRIDE_CUDA:-12.9}"
    if ! micromamba create --yes --prefix "$environment" --channel conda-forge python=3.12 pip "tensorflow[version='$versions',build='cuda*']"; then
        echo "conda-forge has no TensorFlow $versions with CUDA for aarch64: see docs/centres.md" >&2
        exit 1
    fi
    # Without dependencies: pip would install TensorFlow's wheel, which has no CUDA.
    "$environment/bin/pip" install --no-cache-dir --no-deps "$source"
    "$environment/bin/python" -c '
import importlib.metadata
for requirement in importlib.metadata.requires("tfdist"):
    if "extra ==" not in requirement and not requirement.startswith(("tensorflow<", "tensorflow>")):
        print(requirement)
' > /tmp/requirements.txt
    "$environment/bin/pip" install --no-cache-dir -r /tmp/requirements.txt
    ;;
*)
    echo "TensorFlow $versions has no build for $(uname -m)" >&2
    exit 1
    ;;
esac
if command -v micromamba > /dev/null; then
    micromamba clean --all --yes
fi

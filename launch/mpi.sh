#!/bin/bash
# Trains on named hosts with Open MPI, without a batch system: HOST:RANKS,... in TFDIST_HOSTS. From the repository's root:
#
#     TFDIST_HOSTS=server1:2,server2:2 bash launch/mpi.sh --config=configs/digits.py --workdir=runs/four
#
# This is `horovodrun -np 4 -H server1:2,server2:2`. The hosts need the same paths, and ssh between them without a password.
# With Intel MPI, which has other options:
#
#     mpirun -n 4 -ppn 2 -hosts server1,server2 -genv TFDIST_CHIEF server1 python -m tfdist.main --config=...
hosts="${TFDIST_HOSTS:?Set TFDIST_HOSTS, such as server1:2,server2:2}"
chief="${hosts%%,*}"

# TFDIST_CHIEF: the host of rank 0, which no batch system names here. --bind-to none: Open MPI would bind each rank to a core.
exec mpirun --host "$hosts" --bind-to none -x PATH -x LD_LIBRARY_PATH -x PYTHONPATH -x TFDIST_CHIEF="${chief%%:*}" \
    python -m tfdist.main "$@"

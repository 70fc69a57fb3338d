# What the PBS files of this folder have in common: one MPI rank for each line of the job's node file is a worker.
cd "${PBS_O_WORKDIR:?is set by PBS in a job: submit this file with qsub}" || exit 1
if [ -n "${TFDIST_SITE:-}" ]; then
    . "$TFDIST_SITE" || exit 1
fi

# PBS gives no warning before the time is up: SIGUSR1, which mpirun passes on, makes the run save and end with 75.
# --bind-to none: Open MPI would bind each rank to one core. -x: the variables go to the other hosts.
# TFDIST_ARGS is split into words: what it holds are flags.
timeout --foreground --signal=USR1 "${TFDIST_SECONDS:-infinity}" \
    mpirun --hostfile "$PBS_NODEFILE" -n "$(wc -l <"$PBS_NODEFILE")" --bind-to none \
    -x PATH -x LD_LIBRARY_PATH -x PYTHONPATH -x PBS_JOBID -x PBS_NODEFILE \
    ${TFDIST_CONTAINER:-} python -m tfdist.main $TFDIST_ARGS
code=$?
# 124: timeout sent the signal. Then, too, the same command goes on: submit it again.
[ "$code" -eq 124 ] && code=75
exit "$code"

# The common part of the PBS files in this folder: starts one MPI rank, a worker, per line of the job's node file.
cd "${PBS_O_WORKDIR:?is set by PBS in a job: submit the PBS file with qsub}" || exit 1
if [ -n "${TFDIST_SITE:-}" ]; then
    . "$TFDIST_SITE" || exit 1
fi

# PBS sends no signal before the time is up. On SIGUSR1, which mpirun forwards, the run saves and exits with code 75:
# submit the same command again to resume.
# --bind-to none: Open MPI would bind each rank to one core. -x: exports the variables to the other hosts.
# TFDIST_COMMAND replaces `python -m tfdist.main`, for a script of your own. TFDIST_ARGS contains its flags and is split
# into words; %a is the number of the task in a job array (qsub -J 0-4). A study runs without mpirun: TFDIST_RANKS=0.
command="${TFDIST_CONTAINER:-} ${TFDIST_COMMAND:-python -m tfdist.main} ${TFDIST_ARGS//%a/${PBS_ARRAY_INDEX:-%a}}"
if [ "${TFDIST_RANKS:-}" = 0 ]; then
    exec $command
fi
exec timeout --foreground --preserve-status --signal=USR1 "${TFDIST_SECONDS:-infinity}" \
    mpirun --hostfile "$PBS_NODEFILE" -n "$(wc -l <"$PBS_NODEFILE")" --bind-to none \
    -x PATH -x LD_LIBRARY_PATH -x PYTHONPATH -x PBS_JOBID -x PBS_NODEFILE \
    $command

"""`tfdist course`: its lists, that every command of every task can be typed, and the answers beside the page's."""

import json
import pathlib
import re
import subprocess

import pytest
from launching import REPOSITORY, python, tfdist

from tfdist.configs.laboratory import course as command
from tfdist.configs.laboratory.task import LAPTOP, PAGE
from tfdist.tools import scaling_results as results
from tfdist.tools.scaling_results import Point, Study

TASKS = [(course, task) for course in command.COURSES.values() for task in course.tasks]
IN_ALLOCATION = {"SLURM_JOB_ID": "7"}


def test_tasks_have_unique_names_and_a_page():
    for each in command.COURSES.values():
        numbers = [task.number.lower() for task in each.tasks]
        assert len(set(numbers)) == len(numbers) and each.centre not in command.COURSES
    for _, task in TASKS:
        assert not task.see or (REPOSITORY / task.see).is_file()
        assert not task.laptop or (task.difference and "DATA" not in "".join(task.laptop)), task.title
        assert task.hardware or not any(re.search(r"\d", answer.page) for answer in task.answers), task.title


def test_the_list_has_every_task_and_each_course_writes_into_its_own_directory():
    output = tfdist("course", "--list").stdout
    assert "--config.data.source.path=DATA" in output
    for each, task in TASKS:
        assert f"{each.name}: " in output and f"  {task.number:<12} {task.title}\n" in output
    name, found = "", set()
    for line in output.splitlines():
        name = line.split(":")[0] if re.match(r"\w+: ", line) else name
        for directory in re.findall(r"--workdir=(\S+)", line):
            assert directory.startswith(f"runs/course/{name}/{PAGE}/"), line
            found.add(name)
    assert found == {*command.COURSES}


def task_of(name, number):
    return command.find_task(command.find_course(name), number)


def test_unknown_names_get_the_nearest():
    assert command.find_course("BSC").name == "cte_power" and task_of("cte_power", "g")
    for name, number, words in (
        ("cte_powr", "1", "'cte_powr'. Nearest: cte_power"),
        ("jean_zay", "4", "'4'. Its tasks: 1, 2, 3"),
        ("piz_daint", "rng", "'rng'. Nearest: ring"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            task_of(name, number)


def write_epochs(workdir, epochs):
    """Writes the reports of a training, one for each epoch."""
    workdir.mkdir(exist_ok=True)
    lines = [json.dumps({"kind": "train", **values}) for values in epochs]
    (workdir / "metrics.jsonl").write_text("\n".join([*lines, ""]))


def test_an_answer_is_that_of_its_epoch(tmp_path):
    # A run whose values are their own names.
    write_epochs(
        tmp_path, [{name: f"{name} in epoch {n}" for name in ("loss", "accuracy", "seconds")} for n in range(1, 6)]
    )
    for number, count in (("2", 5), ("3", 5), ("6", 7)):
        answers = [answer for answer in task_of("bsc", number).answers if " in epoch " in answer.quantity]
        assert len(answers) == count and all(answer.yours(tmp_path, "") == answer.quantity for answer in answers)
    answer = next(each for each in task_of("bsc", "7").answers if each.quantity == "1 GPU: loss by epoch")
    assert answer.yours(tmp_path, "") is None
    write_epochs(tmp_path / "weak-1", [{"loss": 2.5}, {"loss": 1.25}])
    assert answer.yours(tmp_path, "") == "2.5000 1.2500"


def test_size_depends_on_data_and_allocation():
    for name, number, data, env, size in (
        ("bsc", "7", None, {}, LAPTOP),
        ("bsc", "7", "cifar", {}, PAGE),
        ("piz_daint", "ring", None, {}, LAPTOP),
        ("piz_daint", "ring", None, IN_ALLOCATION, PAGE),
    ):
        assert command.choose_size(task_of(name, number), "auto", data, env) == size
    with pytest.raises(ValueError, match=r"task 7 .*--data"):
        command.choose_size(task_of("bsc", "7"), "page", None, IN_ALLOCATION)


# Course, task, size, the allocation's tasks, nodes and GPUs of a node (0: not said; None: no allocation), and what each
# command begins with and has.
ONE = "srun --ntasks=1 python -m tfdist"
TYPED = [
    # What all tasks run is prefixed with srun; a study starts its own steps; a program for one GPU is one task.
    ("piz_daint", "ring", PAGE, (0, 0, 0), [("srun", "")]),
    ("bsc", "7", PAGE, (0, 0, 0), [("python -m tfdist scaling ", "path=DATA --replicas=1,2,4 ")]),
    ("bsc", "A", PAGE, (8, 2, 0), [(f"{ONE}.main", "--config.cluster.gpus=1"), ("python -m tfdist plot ", "")]),
    ("bsc", "E", PAGE, (4, 0, 0), [(f"{ONE} batch_size ", " --config.cluster.gpus=1 ")]),
    # The batch grows with the replicas.
    *(
        (
            *("piz_daint", "3", PAGE, sizes),
            [(f"{ONE}.main ", ""), ("srun python -m tfdist.main ", f"--config.data.batch_size={64 * replicas} ")],
        )
        for sizes, replicas in (((0, 3, 0), 3), ((2, 2, 4), 8))
    ),
    ("piz_daint", "4", PAGE, None, [("python -m tfdist.main ", "--config.data.batch_size=64 ")]),
    ("piz_daint", "4", LAPTOP, (3, 0, 0), [("srun ", "--config.data.batch_size=24 ")]),
    ("it4innovations", "mlp", LAPTOP, None, [("python -m tfdist.launch --workers=2 -- --", ".batch_size=64 ")]),
    # IDRIS' programs.
    (
        *("jean_zay", "3", PAGE, (8, 0, 0)),
        [
            ("python -m tfdist scaling ", ""),
            *(
                (f"srun --ntasks={n} python docs/courses/jean_zay_loop.py --replicas={n} --data", "")
                for n in (1, 2, 4, 8)
            ),
        ],
    ),
    ("jean_zay", "1", LAPTOP, None, [("", "--workers=2 -- -m tfdist.run "), ("", "logical_devices=2")]),
]


@pytest.mark.parametrize(("name", "number", "size", "sizes", "expected"), TYPED)
def test_commands_fit_the_allocation(name, number, size, sizes, expected):
    names = ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_GPUS_ON_NODE")
    env = (
        {} if sizes is None else IN_ALLOCATION | {n: str(value) for n, value in zip(names, sizes, strict=True) if value}
    )
    lines = command.command_lines(task_of(name, number), size, runs=pathlib.Path("runs"), data="DATA", env=env)
    for line, (begin, part) in zip(lines, expected, strict=True):
        assert line.startswith(begin) and part in line
        assert sizes is None or "logical_devices" not in line


def test_job_that_reaches_its_time_limit_is_started_twice():
    task = task_of("cte_power", "5")
    assert task.exit_codes == (0, 75)
    lines = command.command_lines(task, PAGE, runs=pathlib.Path("runs"), data="some/data", env=IN_ALLOCATION)
    estimate, *starts = lines
    assert " --config.cluster.time_limit_seconds=300 " in estimate and starts[: len(starts) // 2] * 2 == starts
    # Slurm must not requeue the job, which waits for its exit code.
    assert all(word in starts[0] for word in ("sbatch --wait --no-requeue ", " --time=5 "))
    output = "stopped by the time limit and saved at step 110 in runs\nworkdir  runs, resumed after step 110\n"
    answers = [answer.yours(pathlib.Path("runs"), output) for answer in task.answers]
    assert answers == [None, "stopped by the time limit and saved at step 110", "after step 110"]
    [answer] = task_of("cte_power", "E").answers
    text = "The largest batch that fits: 256 per replica, 1024 over 4 replica(s): --config.data.batch_size=1024"
    assert answer.yours(pathlib.Path("runs"), text) == 256


def test_answers_from_elsewhere_name_their_source(tmp_path):
    figure = task_of("piz_daint", "figure")
    for table in (command.comparison(figure, PAGE, tmp_path), command.page_answers(figure)):
        assert re.match(r" +CSCS report, 2017\b", table) and "page" not in table


def made_up(workdir):
    """Writes the results of a scaling study, as the command of the task before leaves them."""
    workdir.mkdir(parents=True)
    common = {"first_epoch_seconds": 9.0, "examples": 128, "values": {"accuracy": 0.25}}
    points = [Point(replicas=n, batch_size=16 * n, later_epoch_seconds=[4.0 / n], **common) for n in (1, 2)]
    results.write(workdir, Study(name="ResNet50V2", described="made up", points=points))
    rows = ["replicas,first_epoch_seconds,epoch_seconds,accuracy", "1,9.0,4.0,0.25", "2,9.0,2.0,0.25"]
    (workdir / "scaling.csv").write_text("\n".join(rows))


@pytest.mark.slow
def test_task_prints_and_runs_its_command_and_compares_answers(tmp_path):
    pytest.importorskip("matplotlib")
    runs = tmp_path / "cte_power" / LAPTOP
    made_up(runs / "7")
    output = tfdist("course", "bsc", "c", f"--workdir={tmp_path}").stdout
    line = rf"\n\$ python -m tfdist plot {runs}/7 \S+/published/bsc_resnet50v2 --out={runs}/C/scaling\n"
    assert re.search(line, output)
    assert (runs / "C" / "scaling.png").stat().st_size > 10_000
    seven = command.find_task(command.COURSES["cte_power"], "7")
    # Task C draws what task 7 has measured.
    for table, difference in ((command.comparison(seven, LAPTOP, runs / "7"), "256 digits"), (output, "on digits")):
        assert re.search(r"^1 GPU: first epoch, s +49 +9$", table, re.MULTILINE)
        assert re.search(r"^2 GPUs: later epoch, s +24 +2$", table, re.MULTILINE)
        assert re.search(r"^4 GPUs: accuracy at the end +0.5010 +-$", table, re.MULTILINE)
        assert "page: NVIDIA V100" in table and difference in table and "yours: host " in table
    done = tfdist("course", "bsc", "g", f"--workdir={tmp_path}", code=1)
    assert not done.stdout and "Run first: tfdist course cte_power F" in done.stderr


@pytest.mark.slow
def test_task_that_cannot_run_here_is_one_message(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(ValueError, match=r"there is no config configs/nothing\.py"):
            command.run_line("python -m tfdist.main --config=configs/nothing.py", tmp_path / "log")
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(ValueError, match="there is no sbatch on this machine"):
            command.run_line("sbatch launch/slurm/cte_power.sbatch", tmp_path / "log")
    output = tfdist("course", "bsc", "2", "--dry_run", f"--workdir={tmp_path}/dry", cwd=tmp_path).stdout
    assert not (tmp_path / "dry").exists()
    # Shipped configs are found in any directory.
    assert "$ python -m tfdist.main --config=configs/courses/bsc_mnist.py" in output
    assert re.search(r"^parameters +62,346$", output, re.MULTILINE)
    # So are the programs and batch files, with paths that can be typed.
    output = tfdist("course", "jean_zay", "1", "--dry_run", cwd=tmp_path).stdout
    (program,) = re.findall(r"(/\S+jean_zay_fit\.py)", output)
    assert pathlib.Path(program).is_file()
    tfdist("course", "files", "mine", cwd=tmp_path)
    assert (tmp_path / "mine" / "digits.ipynb").is_file()
    assert "mine/digits.ipynb exists" in tfdist("course", "files", "mine", cwd=tmp_path, code=1).stderr
    # The exit code and the output of a command that fails.
    assert command.run_line("python -c 'print(5); raise SystemExit(3)'", tmp_path / "log") == 3
    assert (tmp_path / "log").read_text() == "5\n"


@pytest.mark.slow
def test_the_job_of_task_5_saves_at_its_time_limit_and_resumes(tmp_path):
    output = tfdist("course", "cte_power", "5", f"--workdir={tmp_path}").stdout
    assert output.count("the command above exited with code 75") == 2
    (saved,) = re.findall(r"^at the time limit +CANCELLED DUE TO TIME LIMIT +stopped by .* step (\d+)$", output, re.M)
    (start,) = re.findall(r"^the same command again starts +not printed +after step (\d+)$", output, re.M)
    assert int(saved) > int(start) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name, number, answers", [("cte_power", "2", 7), ("it4innovations", "mlp", 2)])
def test_task_trains_and_finds_all_its_answers(name, number, answers, tmp_path):
    output = tfdist("course", name, number, f"--workdir={tmp_path}").stdout
    table = output[output.rindex(" page ") :].splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in table[2 : 2 + answers]]
    assert all(row[-1] not in ("-", "not printed") for row in rows), table
    assert rows[0][1] == rows[0][2], "the number of parameters is the page's"


def test_the_exercise_says_what_is_missing_and_is_right_when_completed(tmp_path):
    text = (REPOSITORY / "docs" / "courses" / "line_exercise.py").read_text()
    filled = {
        "    return weights\n": "    return np.broadcast_to(weights[0], weights.shape)\n",
        "    return gradients\n": "    return np.broadcast_to(gradients.mean(0), gradients.shape)\n",
        "    return ids\n": "    return ids[worker::WORKERS]\n",
    }
    printed = []
    for gap, solution in [("", ""), *filled.items()]:
        assert text.count(gap) == 1 or not gap
        text = text.replace(gap, solution) if gap else text
        (tmp_path / "exercise.py").write_text(text)
        done = python(tmp_path / "exercise.py", code=None, start=subprocess.run)
        printed.append([line.endswith("right") for line in done.stdout.splitlines()[:3]])
    assert printed == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]
    assert float(re.search(r"differ by at most (\S+);", done.stdout)[1]) < 1e-12

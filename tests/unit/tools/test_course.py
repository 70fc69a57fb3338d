"""`tfdist course`: its lists, that every command of every task can be typed, and the answers beside the page's."""

import json
import pathlib
import re
import shlex
import subprocess
import sys

import forked
import pytest
from launching import REPOSITORY, worker_environment
from spec_calls import CALLS

from tfdist.configs.laboratory import course as command
from tfdist.configs.laboratory.task import LAPTOP, PAGE
from tfdist.tools import scaling_results as results
from tfdist.tools.scaling_results import Point, Study

TASKS = [(course, task) for course in command.COURSES.values() for task in course.tasks]
IN_ALLOCATION = {"SLURM_JOB_ID": "7"}
# Parses command lines with the flags of their real commands, builds no model, and checks each config and its specs. One
# process per line, because flags belong to a command.
PARSER = """
import functools, importlib, json, os, sys
from tfdist import __main__ as tfdist
from tfdist.config import specs, tool_flags, validate

CALLS = json.loads(sys.argv[1])

def check(line):
    if line[:1] == ["cat"]:
        return
    if line[:1] == ["sbatch"]:
        [file] = [word for word in line if word.endswith(".sbatch")]
        assert os.path.isfile(file), file
        line = line[line.index(file) + 1 :]
        line = line[1:] if line[0] == "srun" else ["python", "-m", "tfdist.main", *line]
    if line[1].endswith(".py") or line[:3] == ["python", "-m", "tfdist.run"]:
        [file] = [word for word in line if word.endswith(".py")]
        folder = os.path.dirname(file)
        texts = [open(name).read() for name in (file, os.path.join(folder, "jean_zay_data.py"))]
        for flag in line[line.index(file) + 1 :]:
            assert any(f'add_argument("{flag.split("=")[0]}"' in text for text in texts), flag
        return
    assert line[:2] == ["python", "-m"], line
    module, arguments = line[2], line[3:]
    if module == "tfdist.launch":
        workers, arguments = arguments[0], arguments[arguments.index("--") + 1 :]
        assert workers.startswith("--workers="), workers
        if arguments[0] == "-m":
            return check(["python", *arguments])
        module = "tfdist.main"
    parser = tool_flags.Parser("tfdist", "")
    if module == "tfdist.main":
        parser.add_run_flags()
    else:
        assert module == "tfdist", module
        importlib.import_module(tfdist.TOOLS[arguments.pop(0)][0]).add_flags(parser)
    config = getattr(parser.read(arguments), "config", None)
    if config is not None:
        check_config(config)


def check_config(config):
    validate.validate(config)
    for name, (positional, keywords) in CALLS.items():
        spec = functools.reduce(getattr, name.split("."), config)
        specs.partial(spec, field=name, positional=positional, **dict.fromkeys(keywords))

for line in json.loads(sys.argv[2]):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check(line)
            code = 0
        except BaseException as error:
            print(" ".join(line), "->", type(error).__name__, error, flush=True)
        os._exit(code)
    os.waitpid(child, 0)
"""


def course(*arguments, cwd=REPOSITORY):
    """Runs the command; returns (exit code, standard output, standard error)."""
    words = [sys.executable, "-m", "tfdist", "course", *arguments]
    done = subprocess.run(words, cwd=cwd, env=worker_environment(), capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def problems(lines):
    """What the parser finds wrong with command lines."""
    words = json.dumps([shlex.split(line) for line in lines])
    command = [sys.executable, "-c", PARSER, json.dumps(CALLS), words]
    done = forked.run(command, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.docs
def test_commands_of_all_tasks_parse():
    lines = [
        line
        for _, task in TASKS
        for size in (PAGE, LAPTOP)
        for line in command.command_lines(task, size, runs=pathlib.Path("runs"), data="some/data", env={})
    ]
    wrong = ["python -m tfdist scaling --config=configs/digits.py --replica=2"]
    wrong += ["python -m tfdist.main --config=configs/digits.py --config.data.source.width=2"]
    wrong += [
        "python -m tfdist.main --config=configs/digits.py --config.optimizer=\"{'target': 'keras.optimizers:No'}\""
    ]
    found = problems([*dict.fromkeys(lines), *wrong])
    assert [line.split(" -> ")[0] for line in found] == [" ".join(shlex.split(line)) for line in wrong], found


def test_tasks_have_unique_names_and_a_page():
    for each in command.COURSES.values():
        numbers = [task.number.lower() for task in each.tasks]
        assert len(set(numbers)) == len(numbers) and each.centre not in command.COURSES
    for _, task in TASKS:
        assert not task.see or (REPOSITORY / task.see).is_file()
        assert not task.laptop or task.difference, task.title
        assert not any("DATA" in line for line in task.laptop), task.title
        printed_numbers = any(re.search(r"\d", answer.page) for answer in task.answers)
        assert task.hardware or not printed_numbers, task.title


def test_the_lists_and_the_nearest_names():
    code, output, error = course("--list")
    assert (code, error) == (0, "")
    for each, task in TASKS:
        assert f"{each.name}: " in output and f"  {task.number:<12} {task.title}\n" in output
    assert "--config.data.source.path=DATA" in output
    assert command.find_course("BSC").name == "cte_power" and command.find_task(command.COURSES["cte_power"], "g")
    with pytest.raises(ValueError, match=r"no course 'cte_powr'. Nearest: cte_power. The courses: "):
        command.find_course("cte_powr")
    with pytest.raises(ValueError, match=r"jean_zay has no task '4'. Its tasks: 1, 2, 3."):
        command.find_task(command.COURSES["jean_zay"], "4")
    with pytest.raises(ValueError, match=r"no task 'rng'. Nearest: ring"):
        command.find_task(command.COURSES["piz_daint"], "rng")


def test_the_commands_of_a_course_write_into_its_own_directory():
    code, output, _ = course("--list")
    assert code == 0
    name, found = "", set()
    for line in output.splitlines():
        name = line.split(":")[0] if re.match(r"\w+: ", line) else name
        for directory in re.findall(r"--workdir=(\S+)", line):
            assert directory.startswith(f"runs/course/{name}/{PAGE}/"), line
            found.add(name)
    assert found == {*command.COURSES}


def printed_by_epoch():
    """What the course of BSC prints: the program and its flags -> epoch -> name -> value, as text."""
    found = {}
    for line in (pathlib.Path(__file__).parent / "pages" / "cte_power.txt").read_text().splitlines():
        if line.startswith("$ python "):
            epochs = found[line.removeprefix("$ python ")] = {}
        elif line.startswith("Epoch "):
            values = epochs[int(line.split()[1].split("/")[0])] = {}
        elif " - " in line:
            values |= re.findall(r"(loss|accuracy): ([\d.]+)", line)
            values |= [("seconds", seconds) for seconds in re.findall(r" (\d+)s ", line)]
    return found


def write_epochs(workdir, epochs):
    """Writes the reports of a training, one for each epoch."""
    workdir.mkdir(exist_ok=True)
    lines = [json.dumps({"kind": "train", **values}) for values in epochs]
    (workdir / "metrics.jsonl").write_text("\n".join([*lines, ""]))


def test_an_answer_is_compared_with_the_epoch_under_which_the_page_prints_it(tmp_path):
    # A run whose values are their own names.
    epochs = [{name: f"{name} in epoch {epoch}" for name in ("loss", "accuracy", "seconds")} for epoch in range(1, 6)]
    write_epochs(tmp_path, epochs)
    page, tasks = printed_by_epoch(), {task.number: task for task in command.COURSES["cte_power"].tasks}
    one, two, four = (f"ResNet50.py --epochs 5 --batch_size {256 * n} --n_gpus {n}" for n in (1, 2, 4))
    for number, program, count in (("2", "MNIST.py", 5), ("3", "MNIST.py", 5), ("6", one, 7)):
        answers = [answer for answer in tasks[number].answers if " in epoch " in answer.quantity]
        assert len(answers) == count
        for answer in answers:
            name, epoch = answer.quantity.split(" in epoch ")
            assert answer.yours(tmp_path, "") == answer.quantity
            assert page[program][int(epoch)][name] == answer.page
    answers = {answer.quantity: answer.page for answer in tasks["7"].answers}
    for gpus, program in (("1 GPU", one), ("2 GPUs", two), ("4 GPUs", four)):
        assert answers[f"{gpus}: first epoch, s"] == page[program][1]["seconds"]
        assert answers[f"{gpus}: later epoch, s"] == page[program][2]["seconds"]
        assert answers[f"{gpus}: accuracy at the end"] == page[program][5]["accuracy"]
        for name in ("loss", "accuracy"):
            assert answers[f"{gpus}: {name} by epoch"] == " ".join(page[program][epoch][name] for epoch in range(1, 6))
    answer = next(each for each in tasks["7"].answers if each.quantity == "1 GPU: loss by epoch")
    assert answer.yours(tmp_path, "") is None
    write_epochs(tmp_path / "weak-1", [{"loss": 2.5}, {"loss": 1.25}])
    assert answer.yours(tmp_path, "") == "2.5000 1.2500"
    losses, accuracies = ([page["MNIST.py"][epoch][name] for epoch in (1, 2, 3)] for name in ("loss", "accuracy"))
    row = f"| loss {', '.join(losses)} in epochs 1, 2 and 3; accuracy {', '.join(accuracies)} |"
    assert row in (REPOSITORY / "configs/courses/bsc_mnist.py").read_text()
    assert f"loss {losses[2]}, accuracy {accuracies[2]} in epoch 3;" in (REPOSITORY / "docs/courses.md").read_text()


def test_size_depends_on_data_and_allocation():
    seven = command.find_task(command.COURSES["cte_power"], "7")
    assert command.choose_size(seven, "auto", None, {}) == LAPTOP
    assert command.choose_size(seven, "auto", "cifar", {}) == PAGE
    with pytest.raises(ValueError, match="task 7 in the page's size needs --data"):
        command.choose_size(seven, "page", None, IN_ALLOCATION)
    ring = command.find_task(command.COURSES["piz_daint"], "ring")
    assert command.choose_size(ring, "auto", None, {}) == LAPTOP
    assert command.choose_size(ring, "auto", None, IN_ALLOCATION) == PAGE
    # What all tasks of an allocation run is prefixed with srun; a study starts its own steps.
    values = {"runs": pathlib.Path("runs"), "data": "cifar", "env": IN_ALLOCATION}
    assert [line.split()[0] for line in command.command_lines(ring, PAGE, **values)] == ["srun"]
    [study] = command.command_lines(seven, PAGE, **values)
    one = command.find_task(command.COURSES["jean_zay"], "1")
    for where, devices in ((IN_ALLOCATION, False), ({}, True)):
        _, line = command.command_lines(one, LAPTOP, **values | {"env": where})
        assert ("logical_devices=2" in line) == devices and line.endswith(f"--workdir=runs/{LAPTOP}/1/main")
    both = command.find_task(command.COURSES["piz_daint"], "3")
    for size in (LAPTOP, PAGE):
        lines = command.command_lines(both, size, **values)
        assert [line.partition(" python ")[0] for line in lines] == ["srun --ntasks=1", "srun"]
    assert study.startswith("python -m tfdist scaling ") and "path=cifar --replicas=1,2,4 " in study


def typed(name, number, size, **variables):
    """The command lines of a task in an allocation of these variables; {}: on a machine without one."""
    task = command.find_task(command.COURSES[name], number)
    env = IN_ALLOCATION | variables if variables else {}
    return command.command_lines(task, size, runs=pathlib.Path("runs"), data="some/data", env=env)


def test_answers_from_elsewhere_name_their_source(tmp_path):
    figure = command.find_task(command.COURSES["piz_daint"], "figure")
    for table in (command.comparison(figure, PAGE, tmp_path), command.page_answers(figure)):
        assert re.match(r" +CSCS report, 2017\b", table) and "page" not in table
        assert "\nCSCS report, 2017: nodes of Piz Daint with one P100 each, TensorFlow 1.1" in table


@pytest.mark.parametrize("number", ["6", "A", "B", "D"])
def test_a_program_for_one_gpu_is_one_task_with_one_gpu(number):
    for size in (PAGE, LAPTOP):
        lines = typed("cte_power", number, size, SLURM_NTASKS="8", SLURM_JOB_NUM_NODES="2")
        trainings = [line for line in lines if "tfdist.main" in line]
        assert trainings and all(line.startswith("srun --ntasks=1 python -m tfdist.main") for line in trainings)
        assert all(("--config.cluster.gpus=1" in line) == (size == PAGE) for line in trainings)
        assert not any("srun" in line for line in typed("cte_power", number, size))


def test_the_largest_batch_is_that_of_one_gpu():
    [line] = typed("cte_power", "E", PAGE, SLURM_NTASKS="4")
    assert line.startswith("srun --ntasks=1 python -m tfdist batch_size ")
    assert " --config.cluster.gpus=1 " in line and " --by=devices " in line
    [answer] = command.find_task(command.COURSES["cte_power"], "E").answers
    text = "The largest batch that fits: 256 per replica, 1024 over 4 replica(s): --config.data.batch_size=1024"
    assert answer.yours(pathlib.Path("runs"), text) == 256


@pytest.mark.parametrize(
    ("name", "number", "each", "alone"),
    [
        ("it4innovations", "mlp", 32, 32),
        ("it4innovations", "cache", 32, 32),
        ("piz_daint", "3", 64, 64),
        ("piz_daint", "4", 64, 64),
    ],
)
def test_the_batch_of_a_task_grows_with_the_replicas(name, number, each, alone):
    for variables, replicas in (
        ({"SLURM_NTASKS": "2"}, 2),
        ({"SLURM_JOB_NUM_NODES": "3"}, 3),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}, 8),
        ({"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}, 8),
        ({}, 1),
    ):
        line = typed(name, number, PAGE, **variables)[-1]
        assert f"--config.data.batch_size={each * replicas} " in line
        assert line.startswith("srun python -m tfdist.main " if variables else "python -m tfdist.main ")
    assert "--config.data.batch_size=" not in typed(name, number, PAGE)[0] or alone == each


def test_the_programs_of_idris_run_on_the_tasks_of_an_allocation():
    fit, main = typed("jean_zay", "1", PAGE, SLURM_NTASKS="8")
    assert fit.startswith("srun python -m tfdist.run --workdir=runs/page/1 docs/courses/jean_zay_fit.py --replicas=8 ")
    assert main.startswith("srun python -m tfdist.main ") and " --config.data.batch_size=512 " in main
    loop, main = typed("jean_zay", "2", PAGE, SLURM_NTASKS="8")
    assert (
        loop.startswith("srun python docs/courses/jean_zay_loop.py --data=")
        and " --config.data.batch_size=512 " in main
    )
    study, *loops = typed("jean_zay", "3", PAGE, SLURM_NTASKS="8")
    assert study.startswith("python -m tfdist scaling ")
    assert [line.partition(" --data")[0] for line in loops] == [
        f"srun --ntasks={n} python docs/courses/jean_zay_loop.py --replicas={n}" for n in (1, 2, 4, 8)
    ]
    [fit, main] = typed("jean_zay", "1", LAPTOP)
    assert (
        "--workers=2 -- -m tfdist.run " in fit and " --replicas=2 " in fit and " --config.data.batch_size=32 " in main
    )
    [fit, _] = typed("jean_zay", "1", LAPTOP, SLURM_NTASKS="3")
    assert fit.startswith("srun python -m tfdist.run ") and " --replicas=3 " in fit


def test_the_laptop_size_uses_the_tasks_of_an_allocation():
    two, three = {}, {"SLURM_NTASKS": "3"}
    for number in ("mlp", "cache"):
        for variables, begins, batch in ((two, "python -m tfdist.launch --workers=2 -- --", 64), (three, "", 96)):
            [line] = typed("it4innovations", number, LAPTOP, **variables)
            assert line.startswith(begins or "srun python -m tfdist.main --config=")
            assert f"--config.data.batch_size={batch} --config.data.evaluation_batch_size={batch} " in line
    [line] = typed("cte_power", "3", LAPTOP, **three)
    assert line.startswith("srun --ntasks=1 python -m tfdist.main --config=")
    assert "--config.data.batch_size=16 " in typed("piz_daint", "3", LAPTOP)[-1]
    assert "logical_devices" not in typed("piz_daint", "3", LAPTOP, **three)[-1]
    for variables, batch in ((two, 8), (three, 24)):
        [line] = typed("piz_daint", "4", LAPTOP, **variables)
        assert f"--config.data.batch_size={batch} " in line and "scaling=linear" in line


def test_job_that_reaches_its_time_limit_is_started_twice():
    task = command.find_task(command.COURSES["cte_power"], "5")
    assert task.exit_codes == (0, 75)
    for size, variables in ((PAGE, {"SLURM_NTASKS": "4"}), (LAPTOP, {})):
        estimate, *starts = typed("cte_power", "5", size, **variables)
        assert " --job_minutes=5 " in estimate and len(starts) in (2, 4) and starts[: len(starts) // 2] * 2 == starts
        assert all("cat " in line or " --config.cluster.gpus=0 " in line for line in starts)
    # Slurm must not requeue the job, which waits for its exit code.
    assert all(word in typed("cte_power", "5", PAGE)[1] for word in ("sbatch --wait --no-requeue ", " --time=5 "))
    output = "stopped by the time limit and saved at step 110 in runs\nworkdir  runs, resumed after step 110\n"
    answers = [answer.yours(pathlib.Path("runs"), output) for answer in task.answers]
    assert answers == [None, "stopped by the time limit and saved at step 110", "after step 110"]


def made_up(workdir):
    """Writes the results of a scaling study, as the command of the task before leaves them."""
    workdir.mkdir(parents=True)
    points = [
        Point(
            replicas=n,
            batch_size=16 * n,
            first_epoch_seconds=9.0,
            later_epoch_seconds=[4.0 / n],
            examples=128,
            values={"accuracy": 0.25},
        )
        for n in (1, 2)
    ]
    results.write(workdir, Study(name="ResNet50V2", described="made up", points=points))
    rows = ["replicas,first_epoch_seconds,epoch_seconds,accuracy", "1,9.0,4.0,0.25", "2,9.0,2.0,0.25"]
    (workdir / "scaling.csv").write_text("\n".join(rows))


@pytest.mark.slow
def test_task_prints_and_runs_its_command_and_compares_answers(tmp_path):
    pytest.importorskip("matplotlib")
    runs = tmp_path / "cte_power" / LAPTOP
    made_up(runs / "7")
    code, output, error = course("bsc", "c", f"--workdir={tmp_path}")
    assert code == 0, output + error
    assert f"\n$ python -m tfdist plot {runs}/7 --published=bsc_resnet50v2 --out={runs}/C/scaling\n" in output
    assert (runs / "C" / "scaling.png").stat().st_size > 10_000
    seven = command.find_task(command.COURSES["cte_power"], "7")
    # Task C draws what task 7 has measured.
    for table, difference in ((command.comparison(seven, LAPTOP, runs / "7"), "256 digits"), (output, "on digits")):
        assert re.search(r"^1 GPU: first epoch, s +49 +9$", table, re.MULTILINE)
        assert re.search(r"^2 GPUs: later epoch, s +24 +2$", table, re.MULTILINE)
        assert re.search(r"^4 GPUs: accuracy at the end +0.5010 +-$", table, re.MULTILINE)
        assert "page: NVIDIA V100" in table and difference in table and "yours: host " in table
    code, output, error = course("bsc", "g", f"--workdir={tmp_path}")
    assert code == 1 and not output
    assert f"task G draws the results of task F, which are not in {runs}. Run first: tfdist course cte_power F" in error


def test_task_that_cannot_run_here_is_one_message(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(ValueError, match=r"there is no config configs/nothing\.py"):
            command.run_line("python -m tfdist.main --config=configs/nothing.py", tmp_path / "log")
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(ValueError, match="there is no sbatch on this machine"):
            command.run_line("sbatch launch/slurm/cte_power.sbatch", tmp_path / "log")
    code, output, error = course("bsc", "2", "--dry_run", f"--workdir={tmp_path}/dry", cwd=tmp_path)
    assert (code, error, (tmp_path / "dry").exists()) == (0, "", False)
    # Shipped configs are found in any directory.
    assert "$ python -m tfdist.main --config=configs/courses/bsc_mnist.py" in output
    assert re.search(r"^parameters +62,346$", output, re.MULTILINE)
    assert "A run prints its own values beside these." in output and "yours" not in output
    # So are the programs and batch files, with paths that can be typed.
    code, output, error = course("jean_zay", "1", "--dry_run", cwd=tmp_path)
    (program,) = re.findall(r"(/\S+jean_zay_fit\.py)", output)
    assert code == 0 and pathlib.Path(program).is_file(), error
    code, output, error = course("files", "mine", cwd=tmp_path)
    assert (code, error) == (0, "") and (tmp_path / "mine" / "digits.ipynb").is_file()
    code, output, error = course("files", "mine", cwd=tmp_path)
    assert code == 1 and "mine/digits.ipynb exists: name another folder" in error
    # The exit code and the output of a command that fails.
    assert command.run_line("python -c 'print(5); raise SystemExit(3)'", tmp_path / "log") == 3
    assert (tmp_path / "log").read_text() == "5\n"


@pytest.mark.slow
def test_the_job_of_task_5_saves_at_its_time_limit_and_resumes(tmp_path):
    code, output, error = course("cte_power", "5", f"--workdir={tmp_path}")
    assert code == 0, output + error
    assert output.count("the command above exited with code 75") == 2
    (saved,) = re.findall(r"^at the time limit +CANCELLED DUE TO TIME LIMIT +stopped by .* step (\d+)$", output, re.M)
    (start,) = re.findall(r"^the same command again starts +not printed +after step (\d+)$", output, re.M)
    assert int(saved) > int(start) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name, number, answers", [("cte_power", "2", 7), ("it4innovations", "mlp", 2)])
def test_task_trains_and_finds_all_its_answers(name, number, answers, tmp_path):
    code, output, error = course(name, number, f"--workdir={tmp_path}")
    assert code == 0, output + error
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
        done = subprocess.run([sys.executable, tmp_path / "exercise.py"], capture_output=True, text=True, timeout=60)
        printed.append([line.endswith("right") for line in done.stdout.splitlines()[:3]])
    assert printed == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]
    assert float(re.search(r"differ by at most (\S+);", done.stdout)[1]) < 1e-12

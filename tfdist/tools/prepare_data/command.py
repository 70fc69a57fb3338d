"""Downloads and prepares data before a job: `python -m tfdist prepare --config=...`.

For login nodes with internet access, if the compute nodes have none. It downloads what the config's source can
download, opens both splits, and reads and prepares the first batch of each, so that errors in the data appear here and
not at the start of the job. It can be repeated: existing data is not downloaded again.

With --to=raw or --to=jpeg it writes the images of both splits at the size that training needs: see `resized_files`.
"""

import dataclasses
import inspect
import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from tfdist import config as config_lib
from tfdist.cluster import process_exit
from tfdist.config import flags as config_flags
from tfdist.config import specs
from tfdist.tools import tables
from tfdist.training import features

HEADER = ("split", "examples", "batch", "seconds")
FILES_HEADER = ("split", "images", "MB", "seconds", "images/s")
QUALITY = 90
_SIZE = re.compile(r"[1-9]\d*(x[1-9]\d*)?")


def parse_size(text: str) -> tuple[int, int] | int:
    """Returns the size that `text` means, "256" or "HEIGHTxWIDTH"; raises ValueError if it has another form."""
    if not _SIZE.fullmatch(text):
        raise ValueError(
            f"--size={text}: give HEIGHTxWIDTH in pixels, such as 256x256, or one number, the shorter side, such as "
            "256, which keeps the aspect ratio."
        )
    numbers = [int(word) for word in text.split("x")]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    config_flags.define_config()
    flags.DEFINE_enum("to", None, ["raw", "jpeg"], "Write the images of both splits as pixels, or as JPEGs.")
    flags.DEFINE_string(
        "size",
        None,
        "With --to: HEIGHTxWIDTH, to which images are scaled; or the shorter side, with the aspect ratio kept: "
        "--size=256. Smaller images are then not enlarged.",
    )
    flags.DEFINE_integer("quality", QUALITY, "With --to=jpeg: the quality.", lower_bound=1, upper_bound=100)
    flags.DEFINE_string("output", None, "With --to: the folder, which gets a folder for each split.")


def check_flags() -> None:
    """Raises a ValueError if flags do not fit together."""
    values = flags.FLAGS
    if values.to is None:
        given = [name for name in ("size", "output") if values[name].value is not None]
        given += ["quality"] if values.quality != QUALITY else []
        if given:
            raise ValueError(f"--{given[0]} needs --to: add --to=raw or --to=jpeg.")
        return
    missing = [name for name in ("size", "output") if not values[name].value]
    if missing:
        examples = {"size": "--size=256x256 or --size=256", "output": "--output=FOLDER"}
        raise ValueError(f"--to={values.to} needs --{missing[0]}: add {examples[missing[0]]}.")
    if values.to == "raw" and values.quality != QUALITY:
        raise ValueError(f"--quality={values.quality} is the quality of JPEGs: add --to=jpeg, or remove it.")
    parse_size(values.size)


def with_download(spec: dict[str, Any]) -> dict[str, Any]:
    """The source's spec with `download=True`, if its function has such an argument."""
    return {**spec, "download": True} if "download" in _arguments(spec) else spec


def with_encoded(spec: dict[str, Any]) -> dict[str, Any]:
    """The source's spec with `encoded=True`, if its function has such an argument.

    Without a size, which "image" then does not have; with features of its own, others may need it.
    """
    if "encoded" not in _arguments(spec):
        return spec
    return {name: value for name, value in spec.items() if name != "size" or "features" in spec} | {"encoded": True}


def _arguments(spec: dict[str, Any]) -> Any:
    return inspect.signature(specs.resolve(spec, field="config.data.source")).parameters


def read_batch(options: config_lib.Data, source: Any, prepare: Callable[..., dict[str, Any]], *, training: bool) -> str:
    """Reads and prepares the first batch of a split; describes it, such as "image float32 [128, 32, 32, 3]".

    Raises ValueError, with its name, if an example cannot be read.
    """
    from tfdist.data import stream

    size = min(len(source), options.batch_size)
    with stream.name_damaged_example(source):
        if training:
            more = {"seed": 0, "shuffle": options.shuffle}
            batch = next(iter(stream.training(source, prepare, stream.ReplicaShard(), global_batch=size, **more)(0, 1)))
        else:
            dataset, _ = stream.evaluation(source, prepare, stream.ReplicaShard(), global_batch=size, seed=0)
            batch, _ = next(iter(dataset))
    return ", ".join(f"{name} {value.dtype.name} {value.shape.as_list()}" for name, value in batch.items())


def prepare(config: config_lib.Config) -> list[tuple]:
    """Downloads and opens both splits, and reads the first batch of each; returns a row of `HEADER` for each.

    Raises ValueError if the config cannot be used, or an example cannot be read; OSError if the data does not exist and
    cannot be downloaded.
    """
    from tfdist.data import inputs as inputs_lib

    features.check(config)
    function = specs.partial(config.data.prepare, field="config.data.prepare", positional=2, training=True)
    config.data.source = with_download(config.data.source)
    rows = []
    for split, training in ((config.data.train_split, True), (config.data.evaluation_split, False)):
        if split is None:
            continue
        started = time.perf_counter()
        source = inputs_lib.open_source(config, split)
        content = read_batch(config.data, source, function, training=training)
        rows.append((split, len(source), content, round(time.perf_counter() - started, 2)))
    return rows


def write_files(config: config_lib.Config, form: Any, output: Path) -> list[tuple]:
    """Downloads both splits, and writes their images to `output` in the form `form`, a `resized_files.Form`.

    Returns a row of `FILES_HEADER` for each split, without its slice. Raises ValueError if the config cannot be used,
    or an image cannot be read; OSError if the data does not exist, or the files cannot be written.
    """
    from tfdist.data import inputs as inputs_lib
    from tfdist.data import stream
    from tfdist.tools.prepare_data import resized_files

    features.check(config)
    encoded = config.data.source.get("encoded")
    spec = config.data.source = with_encoded(with_download(config.data.source))
    rows = []
    both = [split for split in (config.data.train_split, config.data.evaluation_split) if split is not None]
    for split in dict.fromkeys(split.partition("[")[0] for split in both):
        source = inputs_lib.open_source(config, split)
        if not encoded:  # Training reads pixels, in grey or in colour.
            form = dataclasses.replace(form, channels=getattr(source, "channels", 3))
        with stream.name_damaged_example(source):
            num_bytes, seconds = resized_files.write_split(source, spec, split, form, output)
        rate = round(len(source) / seconds) if seconds else "present"
        rows.append((split, len(source), round(num_bytes / 1e6, 1), round(seconds, 1), rate))
    return rows


def _advice(form: Any, output: Path) -> str:
    source = {"target": "tfdist.zoo.sources:prepared", "path": str(output.absolute())}
    one_size = form.to == "raw" and not isinstance(form.size, int)
    function = "a function of pixels, such as tfdist.zoo.prepare:image" if one_size else "tfdist.zoo.inception:image"
    return (
        f"\nIn the config:\n  source={source!r}\n"
        f"or on the command line:\n  --config.data.source={shlex.quote(json.dumps(source, ensure_ascii=False))}\n"
        f"with config.data.prepare={function}" + (", or tfdist.zoo.inception:image." if one_size else ".")
    )


def prepare_or_write() -> int:
    """Prepares the data of the config, and prints a table; returns the exit code."""
    values = flags.FLAGS
    if values.to is None:
        print(tables.text(HEADER, prepare(values["config"].value)))
        return 0
    from tfdist.tools.prepare_data import resized_files

    form = resized_files.Form(to=values.to, size=parse_size(values.size), quality=values.quality)
    output = Path(values.output)
    print(tables.text(FILES_HEADER, write_files(values["config"].value, form, output)))
    print(_advice(form, output))
    return 0


def main(argv: list[str]) -> None:
    """Runs the command after its flags are parsed, and exits the process."""
    check_flags()
    process_exit.run_and_exit(prepare_or_write, saves=False)

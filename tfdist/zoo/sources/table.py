"""Tables: CSV and Parquet files with a row for each example, read with pandas."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.config import paths
from tfdist.zoo import splits
from tfdist.zoo.sources.arrays import Arrays, divide

# Maximum number of different values: of a column that is a category, and of a label of whole numbers that is a class.
MAX_CATEGORIES, MAX_CLASSES = 100, 20
_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")


def table(
    split: str,
    *,
    path: str,
    label: str,
    ignore: Sequence[str] = (),
    kind: str | None = None,
    test_fraction: float = 0.2,
) -> Arrays:
    """The rows of a CSV, TSV or Parquet file, read with pandas and kept in memory.

    Columns of numbers are used as they are; a missing number becomes the mean of its column. A column of text is a
    category and is encoded one-hot: an input for each different text, in alphabetical order. `columns` of the source,
    which is saved in data.json in the workdir, describes each column; with it `encode` encodes other rows in the same
    way.

    Args:
        split: "train", "test" or "all", with or without a slice; rows are assigned at random, always in the same way.
        path: the file; variables are expanded.
        label: the column to predict.
        ignore: columns to leave out, such as names and numbers of rows.
        kind: "class" or "number", what `label` is; None: a class if it contains text, or at most 20 different integers.
        test_fraction: the part of the rows in "test".

    Returns:
        A source of {"inputs": float32 [n, inputs], "label": int64 [n]}, or "targets": float32 [n] if `label` is a
        number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: pandas is not installed, a column is missing, a category has too many values, or a label is missing.
    """
    path = str(paths.local(path, "path"))
    name = f"table {path!r}"
    frame = read(path)
    columns = describe(frame, label, ignore=ignore, kind=kind, name=name)
    features = {"inputs": encode(frame, columns), **_encode_label(frame, label, columns[label], name)}
    classes = columns[label].get("values")
    options = {"num_classes": classes and len(classes), "classes": classes, "columns": columns}
    made = divide(split, features, test_fraction=test_fraction, name=name, **options)
    rows, part = splits.by_ratio(split, len(frame), test_fraction=test_fraction, source=name)
    made.names = [f"row {row}" for row in rows[part.start : part.stop]]
    return made


def read(path: str, texts: Sequence[str] = ()) -> Any:
    """Returns the `pandas.DataFrame` of a CSV, TSV or Parquet file; the columns `texts` of a CSV file are read as text.

    Raises FileNotFoundError if there is none, and ValueError without pandas, or if it has no rows or cannot be read.
    """
    try:
        import pandas
    except ImportError:
        raise ValueError(f"table {path!r}: reading tables needs pandas: pip install 'tfdist[tables]'") from None
    if not os.path.isfile(path):
        raise FileNotFoundError(f"table {path!r}: there is no file {os.path.abspath(path)!r}.")
    suffix = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    if suffix not in _SUFFIXES:
        raise ValueError(f"table {path!r}: its name must end in {', '.join(_SUFFIXES)}.")
    try:
        if suffix in (".parquet", ".pq"):
            frame = pandas.read_parquet(path)
        else:
            types = dict.fromkeys(texts, str)
            separator = "\t" if suffix == ".tsv" else ","
            options = {"skipinitialspace": True, "low_memory": False, "index_col": False, "dtype": types}
            with warnings.catch_warnings():  # The warning is about rows with more fields than the first line has names.
                warnings.simplefilter("error", pandas.errors.ParserWarning)
                frame = pandas.read_csv(path, sep=separator, **options)
    except (ValueError, ImportError, OSError, pandas.errors.ParserWarning) as error:
        raise ValueError(f"table {path!r} cannot be read by pandas: {str(error).splitlines()[0]}") from None
    if not len(frame):
        raise ValueError(f"table {path!r} has no rows.")
    return frame


def describe(
    frame: Any, label: str, *, ignore: Sequence[str] = (), kind: str | None = None, name: str = "table"
) -> dict[str, dict[str, Any]]:
    """Returns what each column of a `pandas.DataFrame` is, as JSON values; raises ValueError if one cannot be used.

    Returns:
        {column: {"role": "input", "kind": "number", "missing": the mean}}, or {"role": "input", "kind": "category",
        "values": its values}; for the label {"role": "label", "kind": "class", "values": the names of the classes} or
        {"role": "label", "kind": "number"}.
    """
    if kind not in (None, "class", "number"):
        raise ValueError(f'{name}: kind must be "class", "number" or None. Received: {kind!r}')
    for column in (label, *ignore):
        if column not in frame:
            raise ValueError(f"{name} has no column {column!r}. It has: {', '.join(map(str, frame.columns))}.")
    columns = {
        str(column): _describe_input(frame[column], name)
        for column in frame.columns
        if column != label and column not in ignore
    }
    if not columns:
        raise ValueError(f"{name} has no column besides {label!r} that is not ignored.")
    values, numeric = frame[label], is_number(frame[label])
    if kind == "number" and not numeric:
        raise ValueError(f"{name}: the column {label!r} contains text, so it cannot be a number.")
    if not numeric and kind is None:
        _refuse_commas(values, name)
    few = numeric and values.nunique() <= MAX_CLASSES and (values.dropna() % 1 == 0).all()
    if kind == "class" or (kind is None and (few or not numeric)):
        try:
            names = [class_name(value) for value in sorted(values.dropna().unique().tolist())]
        except TypeError:
            raise ValueError(f"{name}: the column {label!r} contains neither numbers nor text.") from None
        return {**columns, label: {"role": "label", "kind": "class", "values": names}}
    return {**columns, label: {"role": "label", "kind": "number"}}


def class_name(value: Any) -> str:
    """Returns the name of a class by its value in a table: a string, or a number, without ".0" if it is a whole one."""
    whole = isinstance(value, bool | int | float) and value % 1 == 0
    return str(int(value)) if whole else str(value)


def is_number(column: Any) -> bool:
    """Returns whether a column of a `pandas.DataFrame` holds numbers, or True and False."""
    from pandas.api import types

    return types.is_numeric_dtype(column) or types.is_bool_dtype(column)


def encode(frame: Any, columns: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """Returns the inputs of the rows of a `pandas.DataFrame`, float32 [rows, inputs].

    `columns` is what `describe` returned for the training table; other columns are not used. A category's value that
    was not in that table gives zeros. Raises ValueError if a column is missing, or has text instead of numbers.
    """
    parts = []
    for name, column in columns.items():
        if column["role"] != "input":
            continue
        if name not in frame:
            raise ValueError(f"The table has no column {name!r}. It has: {', '.join(map(str, frame.columns))}.")
        values = frame[name]
        if column["kind"] == "category":
            texts = values.astype(str).to_numpy()
            parts.append(np.stack([texts == value for value in column["values"]], axis=1))
        elif is_number(values):
            numbers = as_float32(values)
            parts.append(np.where(np.isnan(numbers), column["missing"], numbers)[:, np.newaxis])
        else:
            from pandas import to_numeric

            wrong = values.notna() & to_numeric(values, errors="coerce").isna()
            example = values[wrong if wrong.any() else values.notna()].iloc[0]
            raise ValueError(f"The column {name!r} must hold numbers. Received, for example: {example!r}")
    return np.concatenate(parts, axis=1).astype(np.float32)


def _describe_input(values: Any, name: str) -> dict[str, Any]:
    if is_number(values):
        mean = values.astype("float64").mean()
        return {"role": "input", "kind": "number", "missing": 0.0 if np.isnan(mean) else float(mean)}
    _refuse_commas(values, name)
    texts = sorted(values.dropna().astype(str).unique().tolist())
    if len(texts) > MAX_CATEGORIES:
        other = min(texts, key=lambda text: text.replace(".", "", 1).isdigit())  # If most are numbers: one that is not.
        raise ValueError(
            f"{name}: the column {values.name!r} has {len(texts):,} different texts, such as {other!r}, which is "
            f"too many for a category: leave it out, ignore=[{values.name!r}]."
        )
    return {"role": "input", "kind": "category", "values": texts}


def _refuse_commas(values: Any, name: str) -> None:
    """Raises ValueError for a column of numbers such as "1,5" or "1,000", which pandas reads as text."""
    from pandas import to_numeric

    texts = values.dropna().astype(str)
    numbers = to_numeric(texts.str.replace(",", "", regex=False), errors="coerce")
    if texts.str.contains(",", regex=False).any() and numbers.notna().all():
        raise ValueError(
            f"{name}: the column {values.name!r} holds numbers with commas, which pandas reads as text: write them as "
            f"1234.5, or leave the column out, ignore=[{values.name!r}]."
        )


def as_float32(values: Any) -> np.ndarray:
    """Returns a column of numbers; raises ValueError, which names the row, for one that float32 cannot hold."""
    with np.errstate(over="ignore"):
        numbers = values.to_numpy(np.float64, na_value=np.nan).astype(np.float32)
    if np.isinf(numbers).any():
        row = int(np.flatnonzero(np.isinf(numbers))[0])
        raise ValueError(f"The column {values.name!r} has a number that is infinite or too large in row {row}.")
    return numbers


def _encode_label(frame: Any, label: str, column: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    values = frame[label]
    if values.isna().any():
        row = int(np.flatnonzero(values.isna().to_numpy())[0])
        count = int(values.isna().sum())
        raise ValueError(f"{name}: {count} rows have no value in the column {label!r}; the first is row {row}.")
    if column["kind"] == "number":
        return {"targets": as_float32(values)}
    numbers = {text: number for number, text in enumerate(column["values"])}
    return {"label": np.array([numbers[class_name(value)] for value in values.tolist()], np.int64)}

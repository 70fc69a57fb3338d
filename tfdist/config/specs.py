"""Specs: dicts that name a function by dotted path, and how they are resolved and called. Imports no TensorFlow."""

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.config import removed, text, user_code


def build(spec: dict[str, Any], *args: Any, field: str, **extra: Any) -> Any:
    """Calls the function named by `spec["target"]` with the other items of `spec` as keyword arguments.

    Args:
        spec: `{"target": "package.module:function", **keyword_arguments}`.
        field: the config field of `spec`, for messages.
        **extra: further keyword arguments; `spec` may not repeat them.

    Raises:
        ValueError: there is no such target, its signature does not accept these arguments, or the call fails. Errors
            of the target's module while it is imported, errors of TensorFlow, and errors of tfdist whose message says
            what to do, are raised unchanged.
    """
    function = resolve(spec, field=field)
    keywords = _bind(function, spec, args, extra, field)
    try:
        return function(*args, **keywords)
    except Exception as error:
        if type(error).__module__.startswith("tensorflow") or user_code.is_user_error(error):
            raise
        more = " --verbosity=1 shows the whole stack." if user_code.place(error) else ""
        raise ValueError(user_code.explain(error, field) + more) from error


def partial(spec: dict[str, Any], *, field: str, positional: int = 0, **expected: Any) -> Callable[..., Any]:
    """Like `build`, but returns the function with the items of `spec` bound as keyword arguments.

    The signature is checked immediately, so that a typo is reported before the run starts.

    Args:
        positional: the number of positional arguments of later calls.
        **expected: keyword arguments of later calls; the values are not used.
    """
    function = resolve(spec, field=field)
    _bind(function, spec, (None,) * positional, expected, field)
    return functools.partial(function, **{key: value for key, value in spec.items() if key != "target"})


def check_names(spec: dict[str, Any], *, field: str) -> None:
    """Raises ValueError if there is no such target, or it has no parameter for one of the items of `spec`."""
    _check_names(resolve(spec, field=field), spec, field)


def resolve(spec: dict[str, Any], *, field: str) -> Callable[..., Any]:
    """Imports and returns the function named by `spec["target"]`; raises ValueError as `build` does."""
    target = spec.get("target")
    if not isinstance(target, str) or not re.fullmatch(r"[^:.][^:]*:[^:]+", target):
        raise ValueError(f'{field}.target must name a function as "package.module:function". Received: {target!r}')
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise  # The module exists, but one of its own imports does not.
        if sentence := removed.sentence(module_name):
            raise ValueError(f"{field}.target={target!r}: {sentence}") from None
        raise ValueError(
            f"{field}.target={target!r}: there is no module {error.name!r} in the working directory or "
            "among the installed packages."
        ) from None
    function = module
    for part in name.split("."):
        if not hasattr(function, part):
            if sentence := removed.sentence(target):
                raise ValueError(f"{field}.target: {sentence}")
            hint = nearest(part, [n for n in dir(function) if not n.startswith("_")])
            raise ValueError(f"{field}.target={target!r}: {module_name} has no {part!r}.{hint}")
        function = getattr(function, part)
    if not callable(function):
        raise ValueError(f"{field}.target={target!r} is not callable: {function!r}")
    return function


def describe(spec: Mapping[str, Any]) -> str:
    """Returns a spec in words: "keras.optimizers:SGD(momentum=0.9)"."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in spec.items() if name != "target")
    return f"{spec['target']}({arguments})" if arguments else spec["target"]


def _bind(function: Callable, spec: dict, args: tuple, extra: dict, field: str) -> dict[str, Any]:
    keywords = {key: value for key, value in spec.items() if key != "target"}
    repeated = sorted(set(keywords) & set(extra))
    if repeated:
        raise ValueError(f"{field}.{repeated[0]} is set by tfdist: remove it. Received: {spec!r}")
    merged = extra | keywords
    _check_names(function, spec, field)
    try:
        inspect.signature(function).bind(*args, **merged)
    except TypeError as error:
        raise ValueError(
            f"{field}: {spec['target']} cannot be called with these arguments: {error}. Received: {spec!r}"
        ) from None
    return merged


def _check_names(function: Callable, spec: dict, field: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise ValueError(f"{field}.target={spec['target']!r} has no signature: name a Python function.") from None
    # Keras' optimizers accept any keyword and reject unknown ones later: check the names here.
    of_keras = str(getattr(function, "__module__", "")).startswith("keras.src.optimizers")
    if of_keras or not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for key in spec:
            if key != "target" and key not in names:
                hint = nearest(key, names)
                raise ValueError(f"{field}.{key}: {spec['target']} takes no argument {key!r}.{hint}")


def nearest(name: str, candidates: list[str]) -> str:
    """Returns a sentence with the candidate nearest to `name`, or with all; starts with a space, or is empty."""
    if near := text.closest(name, candidates, 0.5):
        return f" Did you mean {near!r}?"
    return f" It has: {', '.join(sorted(candidates))}." if candidates else ""

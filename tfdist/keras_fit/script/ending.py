"""Ends a script as Python does: waits for its threads, then calls what it has registered with `atexit`."""

import atexit
import contextlib
import functools
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.config.patching import patch
from tfdist.keras_fit.script import script_state


@contextlib.contextmanager
def collect_exit_functions() -> Iterator[Callable[[], None]]:
    """Yields a function that waits for threads and then calls what the block registered, in reverse order.

    On several workers it is collective, if anything was registered.
    """
    registered: list[functools.partial] = []

    def register(original: Callable, function: Callable, *args: Any, **keywords: Any) -> Callable:
        if script_state.in_tfdist_code():
            return original(function, *args, **keywords)
        registered.append(functools.partial(function, *args, **keywords))
        return function

    def unregister(original: Callable, function: Callable) -> None:
        registered[:] = [one for one in registered if one.func != function]
        original(function)

    def end() -> None:
        threading._shutdown()  # As Python does before `atexit`: otherwise idle threads of executors would not end.
        meets = registered and script_state.on_all_workers()
        while registered:
            try:
                registered.pop()()
            except Exception:
                traceback.print_exc()
        if meets:
            script_state.barrier("the end of the script")

    with patch(atexit, "register", register), patch(atexit, "unregister", unregister):
        yield end

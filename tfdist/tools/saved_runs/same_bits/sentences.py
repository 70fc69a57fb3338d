"""What was found by training two runs again, in sentences. Imports no TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.config import text
from tfdist.tools.saved_runs.same_bits import first_difference
from tfdist.tools.saved_runs.same_bits.first_difference import Difference, Outcome

_MAX_EXAMPLES = 5


def describe(outcome: Outcome) -> Iterator[str]:
    """Yields the sentences about an outcome; the first one says where the runs begin to differ."""
    interval, difference = outcome.interval, outcome.difference
    if difference is not None:
        yield from _difference(difference)
    if not outcome.not_reproduced:
        if difference is None:
            yield f"Trained again, A and B are equal up to step {interval.last}, and have the recorded states."
        return
    for name, step in outcome.not_reproduced.items():
        last = outcome.reproduced.get(name)
        seen = "no recorded state" if last is None else f"the recorded states up to step {last}"
        yield f"{name}, trained again here, has {seen}, and another one than the recorded after step {step}."
        if outcome.changed[name]:
            yield f"Changed since {name} was trained: {', '.join(outcome.changed[name])}."
        if name in outcome.damaged:
            yield f"In the checkpoint of {name} after step {step}, {outcome.damaged[name]}."
    if difference is None:
        yield from _describe_unexplained(outcome)


def _describe_unexplained(outcome: Outcome) -> Iterator[str]:
    wrong = list(outcome.not_reproduced)
    step = max(outcome.not_reproduced.values())
    if len(wrong) == 1:
        other = "B" if wrong[0] == "A" else "A"
        last = outcome.reproduced.get(wrong[0], outcome.interval.first)
        where = f"in one of the steps {last + 1} to {step}" if step > last else f"after step {step}"
        yield (
            f"Config, code and data of both give the states of {other}. So {wrong[0]} was changed {where} by something "
            "else: a fault of a device, another machine or version, code or data that have changed since, or code that "
            "is not a function of the state."
        )
    else:
        yield "This machine, or code or data here, are others than those of the runs: how they differ cannot be seen."


def _difference(found: Difference) -> Iterator[str]:
    names = _some(found.variables, found.all_variables, "variables")
    if found.kind == "apart":
        yield f"Equal up to step {found.step}; then A and B make different numbers of steps."
    elif found.kind == "start":
        yield f"The states before step {found.step + 1} differ: {names}."
    elif found.kind == "between":
        yield (
            f"Equal up to the end of step {found.step}; what follows it, before step {found.step + 1}, changes the "
            f"state otherwise in A than in B: {names}. It is an evaluation, a callback or a save."
        )
    else:
        yield f"Equal up to step {found.step - 1}; in step {found.step} {_first_part(found)}."
        yield from _parts(found.inside)
        yield f"  variables after it: {names}"


def _first_part(found: Difference) -> str:
    """Returns which part of a step is the first that differs."""
    inside = found.inside
    if text := _order(*inside):
        return text
    for part, text in (
        ("read", "what the source returns differs"),
        ("prepared", "the source returns equal examples, and what `prepare` makes of them differs"),
    ):
        if examples := _examples(found, part):
            return f"{text}: {examples}"
    layers = differing_names(inside, "outputs")
    if layers:
        return f"the inputs are equal, and the output of the layer `{layers[0]}` is the first that differs"
    gradients = differing_names(inside, "gradients")
    if gradients:
        return (
            f"inputs and outputs of layers are equal, and the gradient of `{gradients[0]}` differs: loss, penalties, "
            "clipping, sums over replicas or the backward pass"
        )
    rates = [one["rate"] for one in inside]
    if rates[0] != rates[1]:
        return f"gradients are equal, and the learning rate differs: {rates[0]:.6g} in A, {rates[1]:.6g} in B"
    if found.variables:
        return f"gradients are equal, and the update of `{found.variables[0]}` differs: the optimizer"
    return "nothing differs when it is made again with ops that record it"


def _order(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    ours, theirs = first["ids"], second["ids"]
    if ours is None or theirs is None or (len(ours) == len(theirs) and (ours == theirs).all()):
        return ""
    if len(ours) != len(theirs):
        return f"the batch has {len(ours):,} examples in A, {len(theirs):,} in B"
    place = int((ours != theirs).argmax())
    same = sorted(ours) == sorted(theirs)
    which = "the same examples are in another order" if same else "the examples are others"
    return f"{which}: at place {place} of the batch example {ours[place]:,} in A, {theirs[place]:,} in B"


def _examples(found: Difference, part: str) -> str:
    inside = found.inside
    if {*inside[0][part]} != {*inside[1][part]}:
        return f"the features {sorted(inside[0][part])} in A, {sorted(inside[1][part])} in B"
    texts = []
    for name in inside[0][part]:
        rows = first_difference.differing_rows(inside, part, name)
        if rows:
            texts.append(f"`{name}` of {_list_names(rows, inside[0])} ({found.words[part, name, rows[0]]})")
    return ", and ".join(texts)


def _list_names(rows: Sequence[int], inside: Mapping[str, Any]) -> str:
    ids = inside["ids"]
    names = [f"{row if ids is None else ids[row]:,}" for row in rows]
    what = "example" if ids is not None else "the place in the batch"
    return f"{what}{'s' * (len(rows) > 1)} {text.list_names(names, _MAX_EXAMPLES)}"


def _parts(inside: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for part, title in (("outputs", "outputs of layers"), ("gradients", "gradients")):
        every = list(dict.fromkeys([*inside[0][part], *inside[1][part]]))
        if every:
            yield f"  {title}: {_some(differing_names(inside, part), len(every), 'differ')}"


def differing_names(inside: Sequence[Mapping[str, Any]], part: str) -> list[str]:
    """Returns the names in a part of a step whose values differ, in the order of A."""
    first, second = inside[0][part], inside[1][part]
    return [name for name in dict.fromkeys([*first, *second]) if first.get(name) != second.get(name)]


def _some(names: Sequence[str], count: int, what: str) -> str:
    if not names:
        return f"0 of {count} {what}"
    return f"{len(names)} of {count} {what}, the first is `{names[0]}`"

"""What a step would do on a GPU, found on a machine without one: ops that run on the host, copies, and waits.

TensorFlow's wheel registers its GPU kernels on any machine, with their types and the arguments that are in host memory.
The audit runs with replicas on the logical devices CPU:1, CPU:2, ..., which stand for GPUs; CPU:0 is the host. It takes
the graph that TensorFlow executes, after inlining, lowering of loops, placement and optimisation, and keeps the ops
inside of loops: the step. An op of a replica runs on the GPU if there is a kernel for its types, else on the host. An
edge from device memory to host memory, or the other way, is a copy in every step.

The optimisations for oneDNN and the layout of images are off: they are those of CPUs.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, op_def_registry

# The kinds of problems: an op that runs on the host; a loop variable there; a tensor that is copied; an op that starts
# after an op on the other side is done, for which TensorFlow waits until the device has finished all before.
ON_HOST, VARIABLE, TO_HOST, TO_DEVICE, WAIT = "on the host", "loop variable", "device to host", "host to device", "wait"
_LOOP_OPS = {"Enter", "Merge", "Switch", "NextIteration", "Exit"}
# Handles and strings are always in host memory: they are never copied.
_NOT_COPIED = {tf.resource.as_datatype_enum, tf.variant.as_datatype_enum, tf.string.as_datatype_enum}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a step does on the host, or that it copies, or that the host waits for."""

    kind: str
    # The op that runs on the host, whose output is copied, or that the host waits for.
    source: str
    # The op that reads the copy or waits; empty for an op on the host.
    reader: str
    # The type of what is copied.
    dtype: str
    # The name of the source's node.
    name: str


def executed_graph(call: Callable[[], Any]) -> graph_pb2.GraphDef:
    """Returns the graph of the largest function that `call` executes, as TensorFlow runs it.

    Args:
        call: runs a `tf.function`. A loop in it may run zero times.
    """
    tf.config.optimizer.set_experimental_options({"remapping": False, "layout_optimizer": False})
    context.context().enable_graph_collection()
    try:
        with tf.device("/CPU:1"):  # TensorFlow prefers the GPU for ops of no device.
            call()
        graphs = context.context().export_run_metadata().function_graphs
    finally:
        context.context().disable_graph_collection()
    return max((graph.post_optimization_graph for graph in graphs), key=lambda graph: len(graph.node))


def audit(graph: graph_pb2.GraphDef) -> list[Problem]:
    """Returns the problems of all ops of `graph` that run in every step."""
    nodes = {node.name: _Node.make(node) for node in graph.node}
    in_step = _in_loops(graph)
    problems: dict[tuple, Problem] = {}
    of_variables = set()
    for name in sorted(in_step):
        if nodes[name].on_host and nodes[name].definition.op == "Merge":
            readers, passing = _loop_variable(name, nodes, in_step)
            of_variables |= passing
            dtype = tf.as_dtype(nodes[name].output_types[0]).name
            problems[VARIABLE, name] = Problem(VARIABLE, dtype, " ".join(sorted(readers)), dtype, name)
    for name in sorted(in_step - of_variables):
        node = nodes[name]
        if node.on_host and node.definition.op not in ("NoOp", "Const"):
            problems[ON_HOST, name] = Problem(ON_HOST, node.label, "", "", name)
        for source, slot, index in _inputs(node.definition):
            if source not in in_step - of_variables:
                continue
            before = nodes[source]
            if slot is None:
                for waited in _behind(before, nodes, in_step) if node.on_host != before.on_host else ():
                    key = (WAIT, waited.definition.name, name)
                    problems[key] = Problem(WAIT, waited.label, node.label, "", key[1])
                continue
            dtype = before.output_types[slot]
            if dtype in _NOT_COPIED or before.output_on_host(slot) == node.input_on_host(index):
                continue
            kind = TO_DEVICE if before.output_on_host(slot) else TO_HOST
            # TensorFlow copies a tensor once for all that read it.
            problems.setdefault(
                (kind, source, slot), Problem(kind, before.label, node.label, tf.as_dtype(dtype).name, source)
            )
    return list(problems.values())


def _loop_variable(merge: str, nodes: dict[str, "_Node"], in_step: set[str]) -> tuple[set[str], set[str]]:
    """Returns the ops that read a loop variable of the host, and the names of the nodes that pass it on."""
    passing, readers, waiting = {merge}, set(), [merge]
    passing |= {name for name, _, _ in _inputs(nodes[merge].definition) if name in nodes}
    readers_of = collections.defaultdict(list)
    for name in in_step:
        for source, slot, _ in _inputs(nodes[name].definition):
            if slot is not None:
                readers_of[source].append(name)
    while waiting:
        for name in readers_of[waiting.pop()]:
            if nodes[name].definition.op not in (*_LOOP_OPS, "Identity"):
                readers.add(nodes[name].label)
            elif name not in passing:
                passing.add(name)
                waiting.append(name)
    return readers, passing


def count(problems: Iterable[Problem]) -> dict[tuple[str, str, str], int]:
    """Returns how often each (kind, source, reader) occurs."""
    return dict(collections.Counter((problem.kind, problem.source, problem.reader) for problem in problems))


def _behind(node: "_Node", nodes: dict[str, "_Node"], in_step: set[str]) -> Iterator["_Node"]:
    """The ops that a wait for `node` waits for: those before it if it is a NoOp that joins several."""
    if node.definition.op != "NoOp":
        yield node
        return
    for source, _, _ in _inputs(node.definition):
        if source in in_step and nodes[source].on_host == node.on_host:
            yield from _behind(nodes[source], nodes, in_step)


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    definition: node_def_pb2.NodeDef
    on_host: bool
    host_inputs: frozenset[int]
    host_outputs: frozenset[int]
    output_types: tuple[int, ...]

    @property
    def label(self) -> str:
        """The op, or the name of the Python function that it calls."""
        function = self.definition.attr["f"].func.name if "f" in self.definition.attr else ""
        return re.sub(r"^__inference_|_\d+(_specialized_for_.*)?$", "", function) or self.definition.op

    @classmethod
    def make(cls, node: node_def_pb2.NodeDef) -> "_Node":
        kernel = gpu_kernel(node) if tf.DeviceSpec.from_string(node.device).device_index else None
        definition = op_def_registry.get(node.op)
        inputs, outputs = (
            [] if definition is None else list(_arguments(node, arguments))
            for arguments in (definition and definition.input_arg, definition and definition.output_arg)
        )
        on_host = () if kernel is None else kernel.host_memory_arg
        return cls(
            definition=node,
            on_host=kernel is None,
            host_inputs=frozenset(i for i, (name, _) in enumerate(inputs) if name in on_host),
            host_outputs=frozenset(i for i, (name, _) in enumerate(outputs) if name in on_host),
            output_types=tuple(dtype for _, dtype in outputs),
        )

    def input_on_host(self, index: int) -> bool:
        return self.on_host or index in self.host_inputs

    def output_on_host(self, index: int) -> bool:
        return self.on_host or index in self.host_outputs


def _in_loops(graph: graph_pb2.GraphDef) -> set[str]:
    """Returns the names of the ops inside of a loop."""
    nodes = {node.name: node for node in graph.node}
    depths: dict[str, int] = {}
    waiting = [node.name for node in graph.node]
    while waiting:
        name = waiting[-1]
        node = nodes[name]
        # The edge back from a NextIteration closes a cycle: a Merge is as deep as its Enter.
        before = [source for source, _, _ in _inputs(node) if nodes[source].op != "NextIteration"]
        missing = [source for source in before if source not in depths]
        if missing and name not in depths:
            waiting += missing
            continue
        waiting.pop()
        depth = max((depths[source] - (nodes[source].op == "Exit") for source in before), default=0)
        depths[name] = depth + (node.op == "Enter")
    return {name for name, depth in depths.items() if depth > 0}


def _inputs(node: node_def_pb2.NodeDef) -> Iterator[tuple[str, int | None, int]]:
    """Yields (name, output, input) of each edge into `node`; the output is None if the edge carries no data."""
    for index, text in enumerate(node.input):
        if text.startswith("^"):
            yield text[1:], None, index
        else:
            name, _, slot = text.partition(":")
            yield name, int(slot or 0), index


@functools.cache
def _gpu_kernels(kind: str) -> tuple[Any, ...]:
    found = sorted(kernels.get_registered_kernels_for_op(kind).kernel, key=lambda kernel: -kernel.priority)
    # Those of the GPU first: TensorFlow takes one for any device only if it finds none.
    return tuple(kernel for device in ("GPU", "DEFAULT") for kernel in found if kernel.device_type == device)


def gpu_kernel(node: node_def_pb2.NodeDef) -> Any:
    """Returns the kernel with which `node` runs on a GPU, or None."""
    if node.op == "_UnaryOpsComposition":  # TensorFlow joins ops in this way on CPUs only.
        found = [gpu_kernel(_unary(node, name.decode())) for name in node.attr["op_names"].list.s]
        return found[0] if all(found) else None
    for kernel in _gpu_kernels(node.op):
        if all(_types(node, one.name) <= {*one.allowed_values.list.type} for one in kernel.constraint):
            return kernel
    return None


def _unary(node: node_def_pb2.NodeDef, op: str) -> node_def_pb2.NodeDef:
    """Returns a node of the type of `node` with another op."""
    made = node_def_pb2.NodeDef(op=op)
    made.attr["T"].type = node.attr["T"].type
    return made


def _types(node: node_def_pb2.NodeDef, name: str) -> set[int]:
    value = node.attr[name]
    return {value.type} if value.HasField("type") else {*value.list.type}


def _arguments(node: node_def_pb2.NodeDef, arguments: Iterable[Any]) -> Iterator[tuple[str, int]]:
    """Yields (name, type) of each input or output."""
    for one in arguments:
        if one.type_list_attr:
            yield from ((one.name, dtype) for dtype in node.attr[one.type_list_attr].list.type)
        else:
            number = node.attr[one.number_attr].i if one.number_attr else 1
            dtype = one.type or node.attr[one.type_attr].type
            yield from [(one.name, dtype)] * number

"""Finds what a resumed run may not repeat in the graph of a function."""

from collections.abc import Iterator

import tensorflow as tf

from tfdist.config import text

# Types of ops that draw random numbers from a state.
RANDOM = {
    *("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal"),
    *("Multinomial", "RandomShuffle", "RandomCrop", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
    *("StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniform"),
    *("StatefulUniformInt", "StatefulUniformFullInt", "StatefulRandomBinomial", "NonDeterministicInts"),
    *("RngSkip", "RngReadAndSkip", "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2"),
    *("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler"),
    *("ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler", "AllCandidateSampler"),
}
# Types of ops that call Python functions. Those that are declared stateless have another type.
PYTHON = {"PyFunc", "EagerPyFunc"}
# Ops that call a function -> the first of their inputs that they pass on.
_CALLING = {
    **dict.fromkeys(("While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"), 0),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), 1),
}
# Ops that write to the variable in their first input begin so.
_WRITING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceStridedSliceAssign")
_PASSING = ("Identity", "Enter", "Switch")
_MAX_NAMED = 5


def called_ops(graph: tf.Graph) -> Iterator[str]:
    """Yields the types of the ops in a function, and in the functions that it calls."""
    yield from (node.op for node in nodes(graph.as_graph_def()))


def nodes(definition: tf.compat.v1.GraphDef) -> Iterator[tf.compat.v1.NodeDef]:
    """Yields the nodes of a graph, and of the functions in its library."""
    for found in (definition.node, *(function.node_def for function in definition.library.function)):
        yield from found


def find_ops(graph: tf.Graph, types: set[str]) -> list[str]:
    """Returns the names of the ops of `graph`, and of its functions, that are of `types`, each with its type."""
    operations = graph.get_operations()
    found = [f"{op.name} ({op.type})" for op in operations if op.type in types]
    if any(op.type in _CALLING for op in operations):
        functions = graph.as_graph_def().library.function
        found += [f"{node.name} ({node.op})" for f in functions for node in f.node_def if node.op in types]
    return list(dict.fromkeys(found))


def list_ops(found: list[str]) -> str:
    """Returns the first of the ops `found`, for a message."""
    return text.list_names(found, _MAX_NAMED)


def written_inputs(graph: tf.Graph) -> set[str]:
    """Returns the names of the placeholders of `graph` whose variables it or a function that it calls writes."""
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    memory: dict[str, set[int]] = {}

    def of_function(name: str) -> set[int]:
        if name not in memory:
            memory[name] = set()  # A function that calls itself.
            function = functions[name]
            places = {one.name: index for index, one in enumerate(function.signature.input_arg)}
            memory[name] = {places[one] for one in written_by(function.node_def) if one in places}
        return memory[name]

    def written_by(nodes: list[tf.compat.v1.NodeDef]) -> set[str]:
        sources = {node.name: _name(node.input[0]) for node in nodes if node.op in _PASSING and node.input}
        found = set()
        for node in nodes:
            indices = {0} if node.op.startswith(_WRITING) else set()
            for called in _called(node) if node.op in _CALLING else ():
                indices |= {_CALLING[node.op] + index for index in of_function(called)}
            found |= {_origin(_name(node.input[index]), sources) for index in indices}
        return found

    return written_by(definition.node)


def _called(node: tf.compat.v1.NodeDef) -> Iterator[str]:
    for value in node.attr.values():
        for function in (value.func, *value.list.func):
            if function.name:
                yield function.name


def _name(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]


def _origin(name: str, sources: dict[str, str]) -> str:
    while name in sources:
        name = sources[name]
    return name

"""Finds what a resumed run may not repeat in the graph of a function."""

from collections.abc import Iterator

import tensorflow as tf

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
# In the names of such ops of tfdist's own.
_OWN = "tfdist_time"


def called_ops(graph: tf.Graph) -> Iterator[str]:
    """Yields the types of the ops in a function, and in the functions that it calls."""
    yield from (node.op for node in nodes(graph.as_graph_def()))


def nodes(definition: tf.compat.v1.GraphDef) -> Iterator[tf.compat.v1.NodeDef]:
    """Yields the nodes of a graph, and of the functions in its library."""
    for found in (definition.node, *(function.node_def for function in definition.library.function)):
        yield from found


def find(graph: tf.Graph, *types: set[str]) -> list[list[tf.Operation]]:
    """Returns the operations of `graph` of each of `types`, and those that call a function with such ops."""
    definition = graph.as_graph_def()
    return [[graph.get_operation_by_name(name) for name in _find(definition, one)] for one in types]


def _find(definition: tf.compat.v1.GraphDef, types: set[str]) -> list[str]:
    found: set[str] = set()  # Functions.

    def is_one(node: tf.compat.v1.NodeDef) -> bool:
        return node.op in types and _OWN not in node.name

    def reaches(node: tf.compat.v1.NodeDef) -> bool:
        called = (one.name for value in node.attr.values() for one in (value.func, *value.list.func))
        return is_one(node) or any(name in found for name in called)

    functions = definition.library.function if any(map(is_one, nodes(definition))) else ()
    for _ in functions:  # As deep as calls may be nested.
        found = {one.signature.name for one in functions if any(map(reaches, one.node_def))}
    return [node.name for node in definition.node if reaches(node)]

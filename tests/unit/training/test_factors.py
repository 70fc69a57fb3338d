"""The matrices of PowerSGD, compared with NumPy."""

import numpy as np
import pytest

from tfdist.training.step.variants import factors
from tfdist.training.step.variants.factors import Layout


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def approximate(layout, matrix, q):
    """One step of algorithm 1: returns the approximation, and Q before it is normalised."""
    (p,) = factors.orthogonalise([layout.first(matrix, q)])
    q = layout.second(matrix, p)
    return layout.product(p, q).numpy(), q


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 3, 64, 128), (576, 128)),
        ((1, 1, 64, 128), (64, 128)),
        ((128, 4, 32), (128, 128)),
        ((5000, 100), (5000, 100)),
        ((4096,), None),
        ((), None),
        # Below the smallest size.
        ((32, 64), None),
        # Its factors would have more than half of its numbers.
        ((1000, 5), None),
        ((3, 3, 300, 2), (9, 600)),
    ],
)
def test_axes_are_divided_where_the_factors_are_smallest(shape, expected):
    found = factors.choose_layout(shape, rank=4, smallest=4096)
    assert found == (None if expected is None else Layout(rows=expected[0], columns=expected[1]))


@pytest.mark.parametrize(("rows", "columns"), [(12, 30), (30, 12)])
@pytest.mark.parametrize("rank", [12, 15])
def test_with_full_rank_the_product_is_the_matrix(rows, columns, rank):
    layout, matrix = Layout(rows=rows, columns=columns), random(rows, columns)
    q = layout.start(rank, [0, 0])
    assert q.shape == (30, rank) and layout.transposed == (rows > columns)
    np.testing.assert_allclose(np.linalg.norm(q, axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(approximate(layout, matrix, q)[0], matrix, rtol=0, atol=2e-5)


def test_repeated_steps_find_the_best_approximation():
    layout, matrix = Layout(rows=40, columns=20), random(40, 20) @ np.diag(0.7 ** np.arange(20, dtype=np.float32))
    q, distances = layout.start(3, [0, 0]), []
    for _ in range(30):
        found, new = approximate(layout, matrix, q)
        (q,) = factors.normalise([new], [q])
        distances.append(np.linalg.norm(found - matrix))
    best = np.sqrt(np.sum(np.linalg.svd(matrix)[1][3:] ** 2))
    assert distances[0] > 1.05 * best and abs(distances[-1] / best - 1) < 1e-3


def test_columns_are_orthonormal_also_if_they_are_nearly_parallel():
    matrices = [random(n, 4, seed=n) for n in (4, 7, 100)]
    matrices[1][:, 1:] = matrices[1][:, :1] + 1e-3 * matrices[1][:, 1:]
    for given, found in zip(matrices, factors.orthogonalise(matrices), strict=True):
        found = found.numpy().astype(float)
        np.testing.assert_allclose(found.T @ found, np.eye(4), atol=1e-6)
        # Each column is a combination of the given ones up to it, with a positive share of its own.
        assert (np.diag(found.T @ given) > 0).all() and np.abs(np.tril(found.T @ given, -1)).max() < 1e-5


def test_dependent_columns_become_zeros_and_nan_stays_nan():
    dependent, zeros, bad = random(50, 3), np.zeros((6, 3), np.float32), random(9, 3)
    dependent[:, 1] = 2.5 * dependent[:, 0]
    bad[0, 0] = np.nan
    first, second, third = (found.numpy() for found in factors.orthogonalise([dependent, zeros, bad]))
    assert not first[:, 1].any() and not second.any()
    np.testing.assert_allclose(np.linalg.norm(first, axis=0), [1, 0, 1], rtol=1e-6)
    assert np.isnan(third).any(axis=0).all()


def test_q_keeps_a_column_that_would_be_zeros():
    old, new = random(8, 2), random(8, 2, seed=1)
    new[:, 0] = 0
    (found,) = factors.normalise([new], [old])
    np.testing.assert_array_equal(found[:, 0], old[:, 0])
    np.testing.assert_allclose(found[:, 1], new[:, 1] / np.abs(new[:, 1]).max(), rtol=1e-6)
    new[0, 1] = np.nan
    assert np.isnan(factors.normalise([new], [old])[0].numpy()[0, 1])


@pytest.mark.parametrize(("rows", "columns"), [(12, 30), (30, 12)])
def test_products_by_element_are_those_of_matrices(rows, columns):
    layout, p, q = Layout(rows=rows, columns=columns), random(12, 3), random(30, 3)
    np.testing.assert_allclose(layout.product_by_element(p, q), layout.product(p, q), rtol=0, atol=1e-6)
    assert layout.hash_of_product(3) == layout.hash_of_product(3) != layout.hash_of_product(4)

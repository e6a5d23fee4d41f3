"""Fits that are recovered from numbers made by hand."""

import math

import numpy as np
import pytest

from jaxagents.ops.scaling import fit_convex, fit_log_linear


def test_a_line_over_doublings():
    """0.1 at one demonstration and 0.05 more with every doubling: 0.95 needs 2^17."""
    fit = fit_log_linear([4, 16, 64, 1024], [0.2, 0.3, 0.4, 0.6])
    np.testing.assert_allclose(fit, (0.05, 0.1), atol=1e-12)
    np.testing.assert_allclose(fit.needed(0.95), 2.0**17, rtol=1e-6)
    assert math.isinf(fit_log_linear([1, 2], [0.5, 0.4]).needed(0.9))


@pytest.mark.parametrize("x0, d", [(0.36, 2.0), (0.5, 1.0), (0.0, 1.5)])
def test_a_convex_function_and_where_it_is_least(x0, d):
    share = np.array([0.0, 0.1, 0.2, 0.36, 0.5, 0.8, 1.0])
    fit = fit_convex(share, 1.2 + 0.7 * np.abs(share - x0) ** d)
    np.testing.assert_allclose(fit, (1.2, 0.7, x0, d), atol=1e-6)


def test_a_constant_is_least_anywhere():
    fit = fit_convex([0.0, 0.5, 1.0], [2.0, 2.0, 2.0])
    np.testing.assert_allclose((fit.a, fit.c), (2.0, 0.0), atol=1e-9)

"""Gradients against finite differences in float64; the baseline without privacy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.demo.data import (
    CLASSES,
    DIMENSION,
    FEATURES,
    IMAGES_PER_CLIENT,
    Images,
    client_set,
    load_images,
)
from agents.demo.data import test_set as public_test_set
from agents.demo.plan import WINDOWS, demo_optimizer
from agents.demo.training import accuracy, client_gradients, train_without_privacy


@pytest.fixture(scope="module")
def images() -> Images:
    return load_images()


def mean_loss(weights: NDArray[np.float64], images: Images) -> float:
    """The cross-entropy, written down slowly."""
    losses = []
    for features, label in zip(images.features, images.labels, strict=True):
        scores = features.astype(np.float64) @ weights.reshape(FEATURES, CLASSES)
        losses.append(np.log(np.exp(scores).sum()) - scores[label])
    return float(np.mean(losses))


def test_a_gradient_is_the_slope_of_the_clients_own_loss(images: Images) -> None:
    clients = client_set(images, 4)
    weights = np.random.default_rng(1).normal(scale=0.1, size=DIMENSION)
    gradients = client_gradients(weights, clients)
    assert gradients.shape == (4, DIMENSION)
    own = Images(clients.features[4:6], clients.labels[4:6])
    for coordinate in np.argsort(-np.abs(gradients[2]))[:20]:
        step = np.zeros(DIMENSION)
        step[coordinate] = 1e-5
        slope = (mean_loss(weights + step, own) - mean_loss(weights - step, own)) / 2e-5
        assert gradients[2][coordinate] == pytest.approx(slope, rel=1e-4)


def test_a_clients_gradient_does_not_depend_on_who_is_computed_beside_it(images: Images) -> None:
    weights = np.random.default_rng(2).normal(size=DIMENSION)
    together = client_gradients(weights, client_set(images, 50))
    last = Images(images.features[98:100], images.labels[98:100])
    assert len(last) == IMAGES_PER_CLIENT
    np.testing.assert_allclose(
        client_gradients(weights, last)[0], together[-1], rtol=1e-4, atol=1e-6
    )


def test_large_scores_do_not_overflow(images: Images) -> None:
    weights = np.full(DIMENSION, 1e30)
    assert np.isfinite(client_gradients(weights, client_set(images, 2))).all()


def test_zero_weights_name_every_image_a_zero(images: Images) -> None:
    assert accuracy(np.zeros(DIMENSION), images) == pytest.approx(0.1)


def test_training_without_privacy_reaches_nine_of_ten(images: Images) -> None:
    accuracies = train_without_privacy(
        demo_optimizer(), client_set(images), public_test_set(images), WINDOWS
    )
    assert len(accuracies) == WINDOWS
    assert 0.88 < accuracies[-1] < 0.92

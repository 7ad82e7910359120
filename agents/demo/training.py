"""Softmax regression: each client's gradient, the accuracy, and training without privacy.

A model is a float vector of `DIMENSION` weights: the matrix ``(FEATURES, CLASSES)`` in C order.
"""

import numpy as np
from numpy.typing import NDArray

from stream.optimizer import Optimizer

from .data import CLASSES, DIMENSION, FEATURES, IMAGES_PER_CLIENT, Images


def client_gradients(weights: NDArray[np.floating], images: Images) -> NDArray[np.float32]:
    """Return each client's gradient of the mean cross-entropy over its own images.

    Args:
        weights: Shape ``(DIMENSION,)``.
        images: `IMAGES_PER_CLIENT` rows for each client.

    Returns:
        Shape ``(clients, DIMENSION)``. Memory is 31 KB a client: ask for a few hundred at once.
    """
    errors = _errors(weights, images) / np.float32(IMAGES_PER_CLIENT)
    per_client = images.features.reshape(-1, IMAGES_PER_CLIENT, FEATURES)
    gradients = per_client.transpose(0, 2, 1) @ errors.reshape(-1, IMAGES_PER_CLIENT, CLASSES)
    return gradients.reshape(-1, DIMENSION)


def accuracy(weights: NDArray[np.floating], images: Images) -> float:
    """Return the fraction of ``images`` that the model names correctly."""
    return float((_scores(weights, images).argmax(axis=1) == images.labels).mean())


def train_without_privacy(
    optimizer: Optimizer, clients: Images, test: Images, steps: int
) -> list[float]:
    """Return the test accuracy after each step of the same training without privacy.

    The same clients, images, start, optimizer and number of steps; the gradients are averaged
    as they are: not clipped, not rounded, no noise, and no client is ever late.
    """
    weights = np.zeros(DIMENSION)
    slots = np.zeros((optimizer.slot_count, DIMENSION))
    accuracies = []
    for step in range(1, steps + 1):
        mean = clients.features.T @ _errors(weights, clients) / np.float32(len(clients))
        weights, slots = optimizer.step(weights, slots, mean.reshape(-1).astype(np.float64), step)
        accuracies.append(accuracy(weights, test))
    return accuracies


def _scores(weights: NDArray[np.floating], images: Images) -> NDArray[np.float32]:
    return images.features @ weights.reshape(FEATURES, CLASSES).astype(np.float32)


def _errors(weights: NDArray[np.floating], images: Images) -> NDArray[np.float32]:
    """Return the derivative of each image's loss by its scores: probabilities minus label."""
    scores = _scores(weights, images)
    # Softmax does not change, and the largest exponent becomes 0: no overflow.
    scores -= scores.max(axis=1, keepdims=True)
    errors = np.exp(scores)
    errors /= errors.sum(axis=1, keepdims=True)
    errors[np.arange(len(images)), images.labels] -= 1
    return errors

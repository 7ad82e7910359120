"""The split of the demonstration's images."""

import numpy as np
import pytest

from agents.demo.data import (
    CLIENTS,
    IMAGES_PER_CLIENT,
    TEST_IMAGES,
    Images,
    client_ids,
    client_set,
    load_images,
)
from agents.demo.data import test_set as public_test_set


@pytest.fixture(scope="module")
def images() -> Images:
    return load_images()


def test_there_are_five_thousand_images_with_five_hundred_of_each_digit(images: Images) -> None:
    assert np.bincount(images.labels).tolist() == [500] * 10
    assert images.features.shape == (5000, 785)


def test_features_are_scaled_pixels_and_a_constant(images: Images) -> None:
    assert images.features.dtype == np.float32
    assert images.features.min() == 0
    assert images.features.max() == 1
    assert (images.features[:, -1] == 1).all()


def test_clients_and_test_set_share_no_image_and_miss_none(images: Images) -> None:
    clients, test = client_set(images), public_test_set(images)
    assert len(clients) == CLIENTS * IMAGES_PER_CLIENT
    assert len(test) == TEST_IMAGES
    assert np.array_equal(np.concatenate((clients.labels, test.labels)), images.labels)
    assert np.array_equal(np.concatenate((clients.features, test.features)), images.features)


def test_the_order_is_the_same_each_time_and_mixes_the_digits(images: Images) -> None:
    assert np.array_equal(load_images().labels, images.labels)
    assert np.bincount(public_test_set(images).labels).min() > 70


def test_fewer_clients_are_the_first_ones(images: Images) -> None:
    few = client_set(images, 3)
    assert np.array_equal(few.labels, images.labels[:6])


@pytest.mark.parametrize("clients", [0, -1, CLIENTS + 1])
def test_a_client_without_images_is_refused(images: Images, clients: int) -> None:
    with pytest.raises(ValueError, match="1 to 2000"):
        client_set(images, clients)


def test_each_client_has_an_identity_of_its_own() -> None:
    assert len(set(client_ids(CLIENTS))) == CLIENTS
    assert client_ids(2) == ["device-0000", "device-0001"]

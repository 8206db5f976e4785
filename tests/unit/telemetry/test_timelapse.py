"""Pictures of what a cluster looked like: a row a node, a column a moment, bounded however long it was watched."""

import io

import numpy as np
from PIL import Image

from aaml.telemetry.timelapse import Timelapse, heat_map


def pixels(picture):
    image = np.asarray(Image.open(io.BytesIO(picture.png)))
    assert image.shape[:2] == (picture.height, picture.width)
    return image


def test_a_full_node_is_dark_and_an_empty_one_is_light_over_time():
    lapse = Timelapse()
    lapse.see(lambda: np.array([[0.0, 1.0], [1.0, 0.0]]))
    lapse.see(lambda: np.array([[1.0, 1.0], [1.0, 0.0]]))
    pictures = lapse.pictures()
    cpu = pixels(pictures["CPU"])
    top, bottom = cpu[0], cpu[-1]
    light, dark = (0xF3, 0xF6, 0xFA), (0x0B, 0x3C, 0x6F)
    assert [tuple(top[0]), tuple(top[-1])] == [light, dark]
    assert [tuple(bottom[0]), tuple(bottom[-1])] == [dark, dark]
    assert tuple(pixels(pictures["memory"])[-1][0]) == light


def test_a_long_watch_keeps_every_second_moment_and_a_large_cluster_means_of_nodes():
    lapse = Timelapse()
    for moment in range(1000):
        lapse.see(lambda moment=moment: np.full((3, 2), moment / 1000))
    (cpu, _) = lapse.pictures().values()
    assert cpu.width == 2 * 500
    assert heat_map(np.zeros((5000, 10))).height == 200


def test_it_begins_anew_when_nodes_come_and_shows_nothing_before_it_saw_any():
    lapse = Timelapse()
    assert lapse.pictures() == {}
    lapse.see(lambda: np.zeros((3, 2)))
    lapse.see(lambda: np.zeros((4, 2)))
    assert lapse.pictures()["CPU"].width == 2


def test_of_a_large_cluster_it_keeps_fewer_moments_for_a_row_stands_for_many_nodes():
    lapse = Timelapse()
    for _ in range(300):
        lapse.see(lambda: np.zeros((1000, 2)))
    assert lapse.pictures()["CPU"].width == 2 * 30

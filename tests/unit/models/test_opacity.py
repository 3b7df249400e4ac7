"""The colours under full transparency: those of what shows nearby."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from workers.models.upscale.enlarge import visible_colours
from workers.models.upscale.upscale_runner import enlarged_opacity


@example(width=37, height=1, seed=1, shown=1)  # a lone pixel that a filter of any other size passes over
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_no_hidden_colour_is_left_where_anything_shows(width: int, height: int, seed: int, shown: int) -> None:
    random = np.random.default_rng(seed)
    pixels = np.zeros((height, width, 4), np.uint8)
    for _ in range(shown):
        pixels[random.integers(height), random.integers(width)] = (200, 90, 250, random.integers(1, 256))
    picture = Image.fromarray(pixels)
    assert np.abs(visible_colours(picture).astype(int) - (200, 90, 250)).max() <= 1
    assert np.array_equal(np.asarray(picture), pixels)


def test_what_shows_keeps_its_colours_and_nothing_shown_keeps_all() -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (9, 17, 4), np.uint8)
    shows = pixels[..., 3] > 0
    assert np.array_equal(visible_colours(Image.fromarray(pixels))[shows], pixels[shows][:, :3])
    pixels[..., 3] = 0
    assert np.array_equal(visible_colours(Image.fromarray(pixels)), pixels[..., :3])


def test_a_hidden_pixel_takes_the_colour_of_the_nearest_side() -> None:
    pixels = np.zeros((8, 32, 4), np.uint8)
    pixels[:, 0], pixels[:, 31] = (255, 0, 0, 255), (0, 0, 255, 255)
    colours = visible_colours(Image.fromarray(pixels))
    assert colours[4, 4].tolist() == [255, 0, 0]
    assert colours[4, 27].tolist() == [0, 0, 255]


def test_an_opacity_is_four_times_as_large() -> None:
    opacity = np.full((3, 5), 255, np.uint8)
    opacity[:, 2:] = 0
    large = enlarged_opacity(opacity)
    assert large.shape == (12, 20)
    assert (large[:, :4] == 255).all()
    assert (large[:, 16:] == 0).all()

"""Ten scenes with text and edges: the demo's lighthouse, and signs, charts and towns that are drawn by seeds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIDE = 256
"""Pixels of a scene's sides."""

_OVERSAMPLED = 4  # shapes are drawn so many times as large, because Pillow's own edges are jagged

Colour = tuple[int, int, int]


class Canvas:
    """A picture under way, with coordinates 0 … ``SIDE`` in both directions, from the upper left corner."""

    def __init__(self, background: Colour) -> None:
        self._image = Image.new("RGB", (SIDE * _OVERSAMPLED, SIDE * _OVERSAMPLED), background)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: Sequence[tuple[float, float]], colour: Colour) -> None:
        """Fill a polygon."""
        self._draw.polygon([_scaled(point) for point in points], fill=colour)

    def rectangle(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """Fill a rectangle."""
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """Fill a circle around a point."""
        self._draw.ellipse([*_scaled((x - radius, y - radius)), *_scaled((x + radius, y + radius))], fill=colour)

    def line(self, points: Sequence[tuple[float, float]], width: float, colour: Colour) -> None:
        """Draw a line through some points."""
        self._draw.line(
            [_scaled(point) for point in points], fill=colour, width=round(width * _OVERSAMPLED), joint="curve"
        )

    def text(self, x: float, y: float, text: str, size: float, colour: Colour) -> None:
        """Write a text around a point, ``size`` pixels high, in the font that Pillow carries."""
        font = ImageFont.load_default(size * _OVERSAMPLED)
        self._draw.text(_scaled((x, y)), text, fill=colour, font=font, anchor="mm")

    def picture(self) -> Image.Image:
        """Return the picture, RGB of ``SIDE`` x ``SIDE`` pixels."""
        return self._image.reduce(_OVERSAMPLED)


def lighthouse() -> Image.Image:
    """Return a lighthouse at dusk, with a word on a sign: the picture that the demo enlarges a small copy of."""
    with Image.open(Path(__file__).parents[1] / "demo" / "lighthouse.png") as picture:
        return picture.convert("RGB")


def sign(seed: int) -> Image.Image:
    """Return a sign: a frame, two words and an arrow, in colours and places of the seed."""
    draw = random.Random(seed)
    ground, ink, accent = _colours(draw)
    canvas = Canvas(ground)
    inset = draw.uniform(10, 22)
    far = SIDE - inset
    canvas.line([(inset, inset), (far, inset), (far, far), (inset, far), (inset, inset)], draw.uniform(3, 8), accent)
    canvas.text(SIDE / 2, draw.uniform(70, 86), draw.choice(["EXIT", "NORTH", "OPEN", "GATE 7", "TAXI"]), 46, ink)
    canvas.text(SIDE / 2, draw.uniform(126, 140), draw.choice(["Platform 12", "Mind the gap", "Keep right"]), 30, ink)
    y, length = draw.uniform(184, 200), draw.uniform(60, 90)
    canvas.line([(128 - length, y), (128 + length, y)], 9, accent)
    canvas.polygon([(128 + length + 18, y), (128 + length - 10, y - 18), (128 + length - 10, y + 18)], accent)
    return canvas.picture()


def chart(seed: int) -> Image.Image:
    """Return a chart: bars, a line with points, axes and numbers."""
    draw = random.Random(seed)
    ground, ink, accent = _colours(draw)
    canvas = Canvas(ground)
    canvas.line([(34, 40), (34, 222), (244, 222)], 3, ink)
    heights = [draw.uniform(30, 150) for _ in range(5)]
    for number, height in enumerate(heights):
        left = 48 + 39 * number
        canvas.rectangle(left, 222 - height, left + 24, 220, accent)
        canvas.text(left + 12, 238, str(draw.randint(10, 99)), 20, ink)
    points = [(60 + 39 * number, 200 - 0.9 * height) for number, height in enumerate(heights)]
    canvas.line(points, 3, ink)
    for x, y in points:
        canvas.disc(x, y, 5, ink)
    canvas.text(140, 22, draw.choice(["Rainfall", "Traffic", "Harvest"]), 30, ink)
    return canvas.picture()


def town(seed: int) -> Image.Image:
    """Return a street: houses with roofs, windows and doors before a sky with a sun, and a name."""
    draw = random.Random(seed)
    canvas = Canvas((150 + draw.randint(-30, 30), 190, 225))
    canvas.disc(draw.uniform(40, 216), draw.uniform(34, 50), draw.uniform(16, 24), (255, 226, 120))
    canvas.rectangle(0, 214, SIDE, SIDE, (92, 96, 100))
    left = -6.0
    while left < SIDE:
        width, top = draw.uniform(56, 84), draw.uniform(96, 140)
        wall = (draw.randint(120, 235), draw.randint(120, 235), draw.randint(120, 235))
        canvas.rectangle(left, top, left + width, 214, wall)
        canvas.polygon([(left - 5, top), (left + width / 2, top - 38), (left + width + 5, top)], (128, 48, 40))
        for x in (left + 10, left + width - 26):
            canvas.rectangle(x, top + 14, x + 16, top + 36, (50, 70, 96))
            canvas.line([(x + 8, top + 14), (x + 8, top + 36)], 2, (240, 240, 235))
        canvas.rectangle(left + width / 2 - 9, 176, left + width / 2 + 9, 214, (74, 50, 34))
        left += width
    canvas.text(128, 236, draw.choice(["Harbour Road", "Mill Lane", "Station St"]), 28, (245, 245, 240))
    return canvas.picture()


def _colours(draw: random.Random) -> tuple[Colour, Colour, Colour]:
    """Return a light ground, a dark ink, and a strong colour."""
    ground = (draw.randint(200, 250), draw.randint(200, 250), draw.randint(200, 250))
    ink = (draw.randint(10, 70), draw.randint(10, 70), draw.randint(10, 70))
    return ground, ink, draw.choice([(200, 40, 40), (30, 110, 190), (20, 130, 70), (210, 120, 10)])


def _scaled(point: tuple[float, float]) -> tuple[float, float]:
    return point[0] * _OVERSAMPLED, point[1] * _OVERSAMPLED


SCENES: Sequence[Callable[[], Image.Image]] = (
    lighthouse,
    *(partial(kind, seed) for seed in range(3) for kind in (sign, chart, town)),
)

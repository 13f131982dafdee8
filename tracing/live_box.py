"""Box-drawing characters by what leaves them: nothing, a light or a heavy stroke on each side."""

from __future__ import annotations

import unicodedata

NONE, LIGHT, HEAVY = 0, 1, 2
UP, RIGHT, DOWN, LEFT = range(4)

Strokes = tuple[int, int, int, int]  # up, right, down, left

_SIDES = {
    "UP": (UP,),
    "RIGHT": (RIGHT,),
    "DOWN": (DOWN,),
    "LEFT": (LEFT,),
    "VERTICAL": (UP, DOWN),
    "HORIZONTAL": (LEFT, RIGHT),
}
_WEIGHTS = {"LIGHT": LIGHT, "HEAVY": HEAVY}


def _strokes(name: str) -> Strokes | None:
    """What Unicode's name of a character says of its strokes; None for dashes, arcs and doubles.

    A name that begins with a weight has each weight before its sides ("HEAVY LEFT AND LIGHT
    RIGHT"), any other has it after them ("UP HEAVY AND RIGHT DOWN LIGHT").
    """
    words = name.removeprefix("BOX DRAWINGS ").split()
    if not set(words) <= {*_SIDES, *_WEIGHTS, "AND"}:
        return None
    if words[0] not in _WEIGHTS:
        words.reverse()
    strokes, weight = [NONE] * 4, NONE
    for word in words:
        weight = _WEIGHTS.get(word, weight)
        for side in _SIDES.get(word, ()):
            strokes[side] = weight
    return (strokes[0], strokes[1], strokes[2], strokes[3])


def _characters() -> dict[Strokes, str]:
    found: dict[Strokes, str] = {(NONE, NONE, NONE, NONE): " "}
    for code in range(0x2500, 0x2580):
        strokes = _strokes(unicodedata.name(chr(code)))
        if strokes is not None:
            found.setdefault(strokes, chr(code))
    return found


CHARACTERS = _characters()


class Strip:
    """One line of connections, drawn stroke by stroke."""

    def __init__(self, width: int) -> None:
        self._cells = [[NONE] * 4 for _ in range(width)]

    def stroke(self, x: int, side: int, weight: int) -> None:
        """From the middle of a cell to one of its sides; a heavy stroke covers a light one."""
        if 0 <= x < len(self._cells):
            cell = self._cells[x]
            cell[side] = max(cell[side], weight)

    def across(self, first: int, second: int, weight: int) -> None:
        """From the middle of one cell to the middle of another."""
        low, high = sorted((first, second))
        for x in range(low, high):
            self.stroke(x, RIGHT, weight)
            self.stroke(x + 1, LEFT, weight)

    def down(self, x: int, weight: int) -> None:
        """Through a cell from top to bottom."""
        self.stroke(x, UP, weight)
        self.stroke(x, DOWN, weight)

    def pieces(self) -> list[tuple[str, bool]]:
        """The characters in runs of heavy ones (True) and others."""
        runs: list[tuple[str, bool]] = []
        for cell in self._cells:
            heavy = HEAVY in cell
            character = CHARACTERS[(cell[0], cell[1], cell[2], cell[3])]
            if runs and runs[-1][1] == heavy:
                runs[-1] = (runs[-1][0] + character, heavy)
            else:
                runs.append((character, heavy))
        return runs

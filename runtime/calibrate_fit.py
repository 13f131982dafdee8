"""Fits step times of an engine: nonnegative least squares, and how far measured steps lie from it.

A step takes ``a + b*prefill_tokens + c*sequences + d*kv_tokens + e*prefill_reach`` seconds; the
last term is the attention of prompts, of which every token looks back on all before it. The fit
minimises the sum of squared *relative* errors, so that short steps count as much as long ones. With
so few coefficients nonnegative least squares needs no iteration: of the fits with some coefficients
at 0 it is the best one without a negative coefficient, and there are 32 of them.

Beside it the first four terms are fitted alone, which says what the fifth is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from autellix.errors import EngineError

from ..scheduler.engine_model import StepTime

REGIONS = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Steps alike, measured several times.

    Attributes:
        region: "prefill", "decode" or "mixed": prompts alone, generation alone, both.
        step_s: mean duration, seconds.
        prefill_tokens, sequences, kv_tokens, prefill_reach: means; see
            :class:`autellix.scheduler.step_log.Step`.
        steps: how many were measured.
    """

    region: str
    step_s: float
    prefill_tokens: float
    sequences: float
    kv_tokens: float
    prefill_reach: float
    steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Measured against fitted.

    Attributes:
        points: how many.
        median, p90: of the absolute relative errors.
        r2: share of the variance of the step times that the fit explains; None of fewer than two
            points.
    """

    points: int
    median: float
    p90: float
    r2: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    """What a fit gave.

    Attributes:
        step: the coefficients.
        residuals: by region, and of "all".
        linear: the coefficients of the first four terms alone.
        linear_residuals: and how far measured steps lie from those.
    """

    step: StepTime
    residuals: dict[str, Residuals]
    linear: StepTime
    linear_residuals: dict[str, Residuals]

    def to_dict(self) -> dict[str, Any]:
        """The fit as plain values."""
        return asdict(self)


def fit_steps(points: Sequence[Point]) -> StepFit:
    """Fit the points.

    Raises:
        EngineError: there are too few, or the steps have no constant part.
    """
    if len(points) < 4:
        raise EngineError(
            f"Only {len(points)} kinds of step were measured, too few to fit the coefficients; "
            "give the engine more seats or a longer context."
        )
    rows = [(1.0, p.prefill_tokens, p.sequences, p.kv_tokens, p.prefill_reach) for p in points]
    shapes = np.array(rows)
    seconds = np.array([p.step_s for p in points])
    whole = nonnegative_fit(shapes, seconds)
    linear = nonnegative_fit(shapes[:, :4], seconds)
    if whole[0] <= 0 or linear[0] <= 0:
        raise EngineError(
            "The steps measured have no constant part, which no engine's do: something else kept "
            "the machine busy. Calibrate again when it is quiet."
        )
    return StepFit(
        step=StepTime(**dict(zip("abcde", whole.tolist(), strict=True))),
        residuals=_residuals(points, shapes @ whole),
        linear=StepTime(**dict(zip("abcd", linear.tolist(), strict=True))),
        linear_residuals=_residuals(points, shapes[:, :4] @ linear),
    )


def nonnegative_fit(shapes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Coefficients >= 0 with the least sum of squared relative errors; fewer where equally good."""
    weighted = shapes / seconds[:, None]
    # Columns of one size, or the small ones drown in rounding.
    scale = np.abs(weighted).max(axis=0)
    scale[scale == 0] = 1.0
    weighted = weighted / scale
    ones = np.ones(len(seconds))
    best, least = np.zeros(shapes.shape[1]), float(len(seconds))
    for size in range(1, shapes.shape[1] + 1):
        for columns in combinations(range(shapes.shape[1]), size):
            chosen = weighted[:, columns]
            found = np.linalg.lstsq(chosen, ones, rcond=None)[0]
            if (found < 0).any():
                continue
            error = float(np.square(chosen @ found - ones).sum())
            if error < least - 1e-9 * len(seconds):
                best, least = np.zeros(shapes.shape[1]), error
                best[list(columns)] = found
    return best / scale


def _residuals(points: Sequence[Point], fitted: np.ndarray) -> dict[str, Residuals]:
    found = {}
    for region in ("all", *REGIONS):
        chosen = [i for i, p in enumerate(points) if region in ("all", p.region)]
        if not chosen:
            continue
        measured = np.array([points[i].step_s for i in chosen])
        off = fitted[chosen] - measured
        relative = np.abs(off) / measured
        spread = float(np.square(measured - measured.mean()).sum())
        found[region] = Residuals(
            points=len(chosen),
            median=float(median(relative)),
            p90=float(np.quantile(relative, 0.9)),
            r2=1 - float(np.square(off).sum()) / spread if spread > 0 else None,
        )
    return found

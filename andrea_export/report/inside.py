"""Looking inside all models of a report: on text first, then where a figure has failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from andrea_export.black_box import NO_BOX, BlackBox
from andrea_export.errors import AndreaExportError
from andrea_export.layer_names import tap_names
from andrea_export.report.candidates import Way
from andrea_export.report.datasets import DataSet
from andrea_export.report.layers import LayerProfile, TapErrors, layer_profile
from andrea_export.report.running import Clock, Lane, run_layers
from andrea_export.report.taps import Taps, TorchTaps
from andrea_export.report.tolerance import Limit
from andrea_export.session.protocol import Array
from andrea_export.session.torch_session import TorchSession

__all__ = ["Inside", "text_windows"]

LAYER_TOKENS = 256
# Windows of a way whose figures failed beside the text, where the text shows nothing.
FAILED_WINDOWS = 2

RunTaps = Callable[[Array], dict[str, Array]]
Fails = Callable[[Way, str], bool]


def text_windows(data: DataSet, count: int) -> list[Array]:
    """Ids [B, T] of `count` windows spread over a data set, of at most 256 tokens."""
    chosen = np.linspace(0, len(data.batches) - 1, min(count, len(data.batches))).astype(int)
    return [data.batches[each].ids[:, :LAYER_TOKENS] for each in dict.fromkeys(chosen.tolist())]


@dataclass
class Inside:
    """What was seen inside, by the identity of a way.

    Attributes:
        profiles: every tap beside the baseline's.
        reasons: why there is no profile.
        notes: how much of a model was seen, where it is not all of it.
        seconds: of all of it.
    """

    profiles: dict[int, LayerProfile] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    black_box: BlackBox = NO_BOX
    # What `look` is given, and the taps of all that could be opened.
    _limits: Mapping[str, Limit] = field(init=False, repr=False)
    _reference: TorchSession = field(init=False, repr=False)
    _clock: Clock = field(init=False, repr=False)
    _taps: dict[int, Taps] = field(init=False, repr=False)

    def look(
        self,
        lanes: Mapping[str, Lane],
        limits: Mapping[str, Limit],
        reference: TorchSession,
        windows: Sequence[Array],
        sets: Sequence[DataSet],
        fails: Fails,
        clock: Clock,
    ) -> None:
        """Fill in everything.

        Args:
            lanes: by dtype.
            limits: of taps, by dtype.
            reference: in float64.
            windows: of the text.
            sets: where else figures may have failed.
            fails: whether a way is out of tolerance on a set.
            clock: goes on from where it is.
        """
        started = time.perf_counter()
        self._limits, self._reference, self._clock = limits, reference, clock
        self._taps = self._open(lanes)
        clock.total = clock.done + len(windows) * (1 + len(self._taps))
        self._run(lanes, windows)
        self._retry(lanes, windows)
        for dtype, lane in lanes.items():
            for way in lane.ways:
                profile = self.profiles.get(id(way))
                # A tied embedding's wrong row shows in all logits, and where that token is read.
                if profile is None or (profile.departure and profile.departure.name != "logits"):
                    continue
                if more := _failed_windows(way, sets, fails):
                    self._run_again({dtype: Lane(lane.baseline, [way])}, more)
        self._taps = {}  # with all the memory behind them
        self.seconds = time.perf_counter() - started

    def _retry(self, lanes: Mapping[str, Lane], windows: Sequence[Array]) -> None:
        """Windows of half the length for a way that fails on whole ones: positions that lie beyond
        the table of them at the end of the context are wrong from the first token on."""
        shorter = [ids[:, : max(1, ids.shape[1] // 2)] for ids in windows]
        for dtype, lane in lanes.items():
            for way in lane.ways:
                is_open = {id(way), id(lane.baseline)} <= self._taps.keys()
                if id(way) in self.profiles or not is_open:
                    continue
                self._run_again({dtype: Lane(lane.baseline, [way])}, shorter)
                if id(way) in self.profiles:
                    del self.reasons[id(way)]

    def _run_again(self, lanes: Mapping[str, Lane], windows: Sequence[Array]) -> None:
        """`_run` for some ways alone, on windows that were not counted on."""
        self._clock.total += len(windows) * (1 + sum(len(lane.all) for lane in lanes.values()))
        self._run(lanes, windows, again=True)

    def _open(self, lanes: Mapping[str, Lane]) -> dict[int, Taps]:
        taps: dict[int, Taps] = {}
        for lane in lanes.values():
            for way in lane.all:
                if way.open_taps is None:
                    self.reasons[id(way)] = way.no_taps or "nothing shows them"
                    continue
                contender, place = way.contender, _place(way)
                if contender.session is None and (contender.died or not contender.crashed):
                    self.reasons[id(way)] = "it could not be run"
                    continue
                if place in self.black_box.deaths:
                    self.reasons[id(way)] = self.black_box.deaths[place]
                    continue
                # The tapped session takes the other's place: both would need twice the memory.
                if way is not lane.baseline:
                    way.contender.close()
                try:
                    with self.black_box.at(place):
                        taps[id(way)] = way.open_taps()
                except AndreaExportError as error:
                    self.reasons[id(way)] = str(error)
        return taps

    def _run(
        self, lanes: Mapping[str, Lane], windows: Sequence[Array], *, again: bool = False
    ) -> None:
        """`again`: what was seen before stays, unless a way leaves the model earlier here."""
        ways = [way for lane in lanes.values() for way in lane.all if id(way) in self._taps]
        taps = {id(way): self._noted(way) for way in ways}
        errors, failed = run_layers(windows, TorchTaps(self._reference), taps, self._clock)
        self.reasons |= failed
        order = tap_names(self._reference.config)
        positions = sum(window.size for window in windows)
        for dtype, lane in lanes.items():
            base = errors.get(id(lane.baseline), TapErrors())
            for way in lane.ways if again else lane.all:
                if id(way) not in errors:
                    continue
                profile = layer_profile(
                    errors[id(way)], base, order, self._limits[dtype], positions
                )
                known = self.profiles.get(id(way))
                if known is None or _is_earlier(profile, known, order):
                    self.profiles[id(way)] = profile
                if profile.unseen:
                    self.notes[id(way)] = (
                        f"layers: seen {len(profile.rows)} of {len(order)} taps "
                        f"({self._taps[id(way)].unseen})"
                    )

    def _noted(self, way: Way) -> RunTaps:
        def run(ids: Array) -> dict[str, Array]:
            with self.black_box.at(_place(way)):
                return self._taps[id(way)](ids)

        return run


def _place(way: Way) -> str:
    return f"{way.place}, layers" if way.place else ""


def _is_earlier(profile: LayerProfile, other: LayerProfile, order: Sequence[str]) -> bool:
    if profile.departure is None:
        return False
    if other.departure is None:
        return True
    return order.index(profile.departure.name) < order.index(other.departure.name)


def _failed_windows(way: Way, sets: Sequence[DataSet], fails: Fails) -> list[Array]:
    """Rows with the worst positions of the sets that failed, the worst of all first."""
    found: list[tuple[float, int, Array]] = []
    for number, data in enumerate(sets):
        if not fails(way, data.name):
            continue
        for token in way.sets[data.name].worst_tokens()[:1]:
            batch = data.batches[token.place.window]
            length = min(int(batch.lengths[token.place.row]), 2 * LAYER_TOKENS)
            row = batch.ids[token.place.row, :length][np.newaxis]
            found.append((-token.kl, number, row))
    return [row for *_, row in sorted(found, key=lambda each: each[:2])][:FAILED_WINDOWS]
